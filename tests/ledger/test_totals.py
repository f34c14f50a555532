"""Totals of grants: reserved and settled together with what they belong to, whoever asks at once and whatever dies."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mesh.errors import Conflict, GrantRefused, LedgerError
from mesh.grant.draw import Draw
from mesh.ledger import Idempotency, Ledger, LedgerReader, Total
from mesh.ledger.format import STEPS, connect, migrate
from mesh.schema.energy import Energy, EnergySource
from mesh.schema.envelope import RECEIPT_TYPE, seal, verify
from mesh.schema.outcome import ServeOutcome

GRANT, PARENT = b"\x11" * 32, b"\x22" * 32
UJ, TOKENS = "total-uj", "total-tokens"
SPENDER = Path(__file__).with_name("spender.py")


def draw(amount: int, limit: int = 1000, caveat: str = UJ, block_id: bytes = GRANT) -> Draw:
    return Draw(1, block_id, caveat, limit, amount)


def intent(maker, number: int, *draws: Draw, idempotency: Idempotency | None = None):
    made = maker.intent(maker.serve_id(number), idempotency=idempotency)
    return made.but(grant_id=GRANT, draws=draws)


def sealing(maker, number: int, uj: int | None, **outcome):
    """A receipt under the grant: of 3 tokens in and 2 out unless told otherwise."""
    energy = Energy.of(basis="absent", sources=[], span_ns=10, reason="no-meter")
    if uj is not None:
        source = EnergySource.of(domain="cpu", method="test", uj=uj, resolution_ns=1)
        energy = Energy.of(basis="measured", sources=[source], span_ns=10, uj=uj)

    def make(position):
        whole = maker.receipt(maker.serve_id(number), position).to_map()
        changes = {"grant_id": GRANT, "energy": energy.to_map()}
        if outcome:
            changes["outcome"] = ServeOutcome.of(**outcome).to_map()
            whole.pop("output_commitment")
        return seal(type(maker.receipt(maker.serve_id(number), position)).from_map({**whole, **changes}), maker.key)

    return make


def used(ledger: Ledger, caveat: str = UJ, block_id: bytes = GRANT) -> Total:
    return ledger.reader.totals([block_id]).get((block_id, caveat), Total())


def test_the_worst_case_is_reserved_and_the_receipts_figure_takes_its_place(ledger, maker):
    assert used(ledger) == Total()
    assert ledger.open_intent(intent(maker, 0, draw(400), draw(11, 50, TOKENS, PARENT))).result() is None
    assert (used(ledger), used(ledger, TOKENS, PARENT)) == (Total(reserved=400), Total(reserved=11))
    ledger.seal(maker.serve_id(0), sealing(maker, 0, 150)).result()
    assert (used(ledger), used(ledger, TOKENS, PARENT)) == (Total(settled=150), Total(settled=5))
    assert used(ledger, TOKENS) == used(ledger, UJ, PARENT) == Total()


def test_a_total_is_given_out_once(ledger, maker):
    for number, amount in ((0, 600), (1, 400)):
        ledger.open_intent(intent(maker, number, draw(amount))).result()
    with pytest.raises(GrantRefused, match="total-uj 1000, offered 1, 0 left") as caught:
        ledger.open_intent(intent(maker, 2, draw(1))).result()
    assert caught.value.code == "grant_refused"
    assert caught.value.grant == {
        "block": 1, "block_id": f"b3:{GRANT.hex()}", "caveat": UJ, "stated": 1000, "offered": 1, "left": 0,
    }  # fmt: skip
    # what one did not need, another may have
    ledger.seal(maker.serve_id(0), sealing(maker, 0, 599)).result()
    ledger.open_intent(intent(maker, 2, draw(1))).result()
    assert used(ledger) == Total(settled=599, reserved=401)


def test_a_refused_draw_leaves_nothing_behind(ledger, maker):
    key = Idempotency("once", b"\x01" * 32)
    with pytest.raises(GrantRefused):
        ledger.open_intent(intent(maker, 0, draw(400), draw(51, 50, TOKENS, PARENT), idempotency=key)).result()
    assert (used(ledger), used(ledger, TOKENS, PARENT)) == (Total(), Total())
    assert ledger.open_intents() == []
    assert ledger.open_intent(intent(maker, 1, idempotency=key)).result() is None


def test_a_repeated_key_draws_once(ledger, maker):
    key = Idempotency("once", b"\x01" * 32)
    ledger.open_intent(intent(maker, 0, draw(400), idempotency=key)).result()
    with pytest.raises(Conflict):
        ledger.open_intent(intent(maker, 1, draw(400), idempotency=key)).result()
    ledger.seal(maker.serve_id(0), sealing(maker, 0, 300)).result()
    assert ledger.open_intent(intent(maker, 2, draw(900), idempotency=key)).result() == maker.serve_id(0)
    assert used(ledger) == Total(settled=300)


@pytest.mark.parametrize(
    ("uj", "outcome", "energy", "tokens"),
    [
        (7, {}, Total(settled=7), Total(settled=5)),
        (0, {}, Total(settled=0), Total(settled=5)),
        (None, {}, Total(estimated=400), Total(settled=5)),
        (7, {"finish": "interrupted", "counted_by": "none"}, Total(settled=7), Total(estimated=11)),
        (None, {"finish": "refused", "counted_by": "none"}, Total(estimated=400), Total(estimated=11)),
        (None, {"finish": "engine-error", "counted_by": "gateway", "tokens_in": 3, "tokens_out": 0},
            Total(estimated=400), Total(settled=3)),
        (None, {"finish": "engine-error", "counted_by": "none", "tokens_in": 3}, Total(estimated=400),
            Total(estimated=11)),
        (5000, {}, Total(settled=5000), Total(settled=5)),
    ],
)  # fmt: skip
def test_what_a_receipt_does_not_say_stays_reserved_and_is_told_apart(ledger, maker, uj, outcome, energy, tokens):
    ledger.open_intent(intent(maker, 0, draw(400), draw(11, 50, TOKENS))).result()
    ledger.seal(maker.serve_id(0), sealing(maker, 0, uj, **outcome)).result()
    assert (used(ledger), used(ledger, TOKENS)) == (energy, tokens)
    if energy.used > 1000:  # more than was estimated: counted in full, and the next is refused
        with pytest.raises(GrantRefused, match="0 left"):
            ledger.open_intent(intent(maker, 1, draw(0 + 1))).result()


def test_a_count_ends_where_the_formats_integers_do(ledger, maker):
    for number in range(2):
        ledger.open_intent(intent(maker, number, draw(1, 2**63 - 1))).result()
    for number in range(2):
        ledger.seal(maker.serve_id(number), sealing(maker, number, 2**63 - 1)).result()
    assert used(ledger).settled == 2**63 - 1
    with pytest.raises(GrantRefused):
        ledger.open_intent(intent(maker, 2, draw(1, 2**63 - 1))).result()


def test_a_seal_that_fails_settles_nothing(ledger, maker):
    ledger.open_intent(intent(maker, 0, draw(400))).result()

    def fails(position):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ledger.seal(maker.serve_id(0), fails).result()
    with pytest.raises(LedgerError, match="another grant"):
        ledger.seal(maker.serve_id(0), maker.sealing(maker.serve_id(0))).result()
    assert used(ledger) == Total(reserved=400)
    assert ledger.reader.count() == 0


def test_a_restart_finds_the_reservation_and_its_grant(path, maker):
    with Ledger.open(path, steward=maker.steward) as ledger:
        ledger.open_intent(intent(maker, 0, draw(400))).result()
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert used(ledger) == Total(reserved=400)
        (left,) = ledger.open_intents()
        assert (left.grant_id, left.draws) == (GRANT, ())
        ledger.seal(left.serve_id, sealing(maker, 0, None, finish="interrupted", counted_by="none")).result()
        assert used(ledger) == Total(estimated=400)


def test_a_thousand_at_once_never_draw_more_than_there_is(path, maker):
    """1,000 callers, 5 microjoules each of a total of 1,000: 200 of them, if each needs all it reserved."""
    with Ledger.open(path, steward=maker.steward) as ledger:
        highest = []
        watching = threading.Event()

        def watch() -> None:
            while not watching.is_set():
                highest.append(used(ledger).used)

        watcher = threading.Thread(target=watch)
        watcher.start()

        def serve(number: int) -> int:
            try:
                ledger.open_intent(intent(maker, number, draw(5))).result()
            except GrantRefused:
                return 0
            ledger.seal(maker.serve_id(number), sealing(maker, number, 5)).result()
            return 1

        with ThreadPoolExecutor(64) as pool:
            served = sum(pool.map(serve, range(1000)))
        watching.set()
        watcher.join()
        receipts = [verify(e.envelope, RECEIPT_TYPE, {maker.steward}).value for e in ledger.reader.receipts()]
        assert served == len(receipts) == 200
        assert used(ledger) == Total(settled=sum(r.energy.uj for r in receipts)) == Total(settled=1000)
        assert max(highest, default=0) <= 1000


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.deep)])
def test_whatever_is_killed_the_counts_are_the_receipts(path, maker, rounds):
    """A spender with many threads, killed at any time and started again, until nothing is left to spend."""
    rng = random.Random(12)
    for round_ in range(rounds):
        with subprocess.Popen(
            [sys.executable, SPENDER, path, maker.key.seed.hex(), str(round_)], stdout=subprocess.PIPE
        ) as spender:
            for _ in range(rng.randrange(1, 30)):
                spender.stdout.readline()
            spender.kill()
        with Ledger.open(path, steward=maker.steward) as ledger:
            running = len(ledger.open_intents())
            receipts = [verify(e.envelope, RECEIPT_TYPE, {maker.steward}).value for e in ledger.reader.receipts()]
            known = [r.energy.uj for r in receipts if r.energy.uj is not None]
            unknown = len(receipts) - len(known)
            assert used(ledger) == Total(settled=sum(known), estimated=5 * unknown, reserved=5 * running)
            assert used(ledger).used <= 2000
            for left in ledger.open_intents():
                number = next(n for n in range(round_ * 10_000, round_ * 10_000 + 10_000)
                              if maker.serve_id(n) == left.serve_id)  # fmt: skip
                ledger.seal(
                    left.serve_id, sealing(maker, number, None, finish="interrupted", counted_by="none")
                ).result()
            assert used(ledger).reserved == 0
            assert used(ledger).used <= 2000


@pytest.fixture
def first_format(path, maker) -> Path:
    """A ledger as the first format left it, with a receipt and an open intent."""
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    db = connect(path, mode="rw")
    migrate(db, 0, steps=STEPS[:1])
    db.execute("INSERT INTO meta VALUES (1, ?, 0, NULL, 0, NULL)", (maker.steward,))
    one = maker.intent(maker.serve_id(0))
    db.execute("INSERT INTO settings VALUES (?, ?)", (b"\x05" * 32, one.settings))
    row = (one.serve_id, one.caller, one.request, one.engine, b"\x05" * 32, one.recipe_id, one.started_ns, None)
    db.execute("INSERT INTO intents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.close()
    return path


def test_a_ledger_of_the_first_format_is_read_as_it_is(first_format, maker):
    before = first_format.read_bytes()
    with LedgerReader.open(first_format) as reader:
        assert reader.totals([GRANT]) == {}
        (left,) = reader.open_intents()
        assert (left.serve_id, left.grant_id) == (maker.serve_id(0), None)
    assert first_format.read_bytes() == before


def test_a_ledger_of_the_first_format_becomes_one_with_totals(first_format, maker, tmp_path):
    old = tmp_path / "old.db"
    shutil.copy(first_format, old)
    with Ledger.open(first_format, steward=maker.steward) as ledger:
        (left,) = ledger.open_intents()
        ledger.seal(left.serve_id, maker.sealing(left.serve_id)).result()
        ledger.open_intent(intent(maker, 1, draw(400))).result()
        assert used(ledger) == Total(reserved=400)
    db = sqlite3.connect(first_format)
    assert db.execute("PRAGMA user_version").fetchone()[0] == len(STEPS)
    db.close()
