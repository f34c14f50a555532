"""Intents, seals, idempotency, checkpoints and kept serves, as the steward meets them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mesh.errors import Conflict, LedgerError, LedgerLocked, SchemaError
from mesh.ledger import Idempotency, Kept, Ledger, Position
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId

SECRET = b"the prompt nobody may read"


def test_seal_numbers_and_chains_receipts(ledger, maker):
    sealed = [maker.serve(ledger, n) for n in range(5)]
    entries = list(ledger.reader.receipts())
    assert [e.seq for e in entries] == [0, 1, 2, 3, 4]
    prev = None
    for entry, made in zip(entries, sealed, strict=True):
        checked = verify(entry.envelope, RECEIPT_TYPE, {maker.steward})
        assert (checked.id, checked.value.prev, checked.value.seq) == (made.id, prev, entry.seq)
        assert entry.receipt_id == made.id
        assert entry.request == maker.request.to_cbor()
        prev = made.id
    assert (ledger.reader.count(), ledger.reader.head()) == (5, sealed[-1].id)
    assert ledger.reader.steward() == maker.steward


def test_ledger_goes_on_where_it_was_closed(path, maker):
    first = maker.fill(path, 3)
    with Ledger.open(path, steward=maker.steward) as ledger:
        made = maker.serve(ledger, 3)
        assert (made.value.seq, made.value.prev) == (3, first[-1].id)


def test_intent_is_listed_until_it_is_sealed(ledger, maker):
    intents = [maker.intent(maker.serve_id(n), idempotency=Idempotency(f"k{n}", b"m" * 32)) for n in range(3)]
    intents.append(maker.intent(maker.serve_id(9)))
    for intent in intents:
        ledger.open_intent(intent).result()
    assert ledger.open_intents() == intents
    ledger.seal(intents[1].serve_id, maker.sealing(intents[1].serve_id)).result()
    assert ledger.open_intents() == [intents[0], intents[2], intents[3]]


def test_intent_survives_a_restart(path, maker):
    intent = maker.intent(maker.serve_id(0), idempotency=Idempotency("k", b"m" * 32))
    with Ledger.open(path, steward=maker.steward) as ledger:
        ledger.open_intent(intent).result()
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.open_intents() == [intent]


def test_intent_of_a_known_serve_is_refused(ledger, maker):
    maker.serve(ledger, 0)
    ledger.open_intent(maker.intent(maker.serve_id(1))).result()
    with pytest.raises(LedgerError, match="UNIQUE"):
        ledger.open_intent(maker.intent(maker.serve_id(1))).result()
    assert len(ledger.open_intents()) == 1


def test_intent_refuses_malformed_fields(ledger, maker):
    with pytest.raises(SchemaError, match="serve id: 3 bytes"):
        ledger.open_intent(maker.intent(b"abc"))
    with pytest.raises(SchemaError, match="settings document"):
        ledger.open_intent(maker.intent(maker.serve_id(0), settings=b"x" * 70_000))


def test_settings_are_kept_once_under_their_digest(ledger, maker):
    maker.serve(ledger, 0)
    maker.serve(ledger, 1)
    document = maker.intent(maker.serve_id(0)).settings
    assert ledger.reader.settings(ContentId.of_canonical("settings", document)) == document
    assert ledger.reader.settings(b"\x00" * 32) is None
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT count(*) FROM settings").fetchone() == (1,)
    db.close()


def test_seal_without_an_intent_is_refused_before_anything_is_signed(ledger, maker):
    signed: list[tuple[int, Position]] = []

    def signing(number: int):
        def make(position: Position):
            signed.append((number, position))
            return maker.sealing(maker.serve_id(number))(position)

        return make

    def refused(number: int) -> None:
        with pytest.raises(LedgerError, match="no open intent"):
            ledger.seal(maker.serve_id(number), signing(number)).result()

    refused(0)  # never opened
    maker.serve(ledger, 0)
    refused(0)  # sealed before
    ledger.open_intent(maker.intent(maker.serve_id(1))).result()
    futures = [ledger.seal(maker.serve_id(1), signing(1)) for _ in range(2)]
    assert futures[0].result().value.seq == 1
    with pytest.raises(LedgerError, match="no open intent"):  # sealed just now, in the same transaction or the last
        futures[1].result()
    assert {number for number, _ in signed} == {1}
    assert len({position for _, position in signed}) == 1


def test_seal_refuses_a_receipt_for_another_place(ledger, maker):
    serve_id, other = maker.serve_id(0), maker.serve_id(1)
    ledger.open_intent(maker.intent(serve_id)).result()
    with pytest.raises(LedgerError, match="not the one for seq 0"):
        ledger.seal(serve_id, maker.sealing(other)).result()
    with pytest.raises(LedgerError, match="not the one for seq 0"):
        ledger.seal(serve_id, lambda _: maker.sealing(serve_id)(Position(7, b"\x01" * 32))).result()
    assert ledger.reader.count() == 0
    assert len(ledger.open_intents()) == 1


def test_seal_that_fails_leaves_its_neighbours_alone(ledger, maker):
    ids = [maker.serve_id(n) for n in range(7)]
    for serve_id in ids:
        ledger.open_intent(maker.intent(serve_id)).result()
    entered, gate = threading.Event(), threading.Event()
    hold = ledger._group.submit(lambda _: (entered.set(), gate.wait(30))[1])
    assert entered.wait(10)

    def broken(position: Position):
        raise ZeroDivisionError("a maker that fails")

    # queued behind the held transaction, so that all of them share the next one
    futures = [ledger.seal(i, broken if n == 3 else maker.sealing(i)) for n, i in enumerate(ids)]
    gate.set()
    hold.result()
    with pytest.raises(ZeroDivisionError):
        futures[3].result()
    assert [f.result().value.seq for n, f in enumerate(futures) if n != 3] == [0, 1, 2, 3, 4, 5]
    assert [e.seq for e in ledger.reader.receipts()] == [0, 1, 2, 3, 4, 5]
    assert [i.serve_id for i in ledger.open_intents()] == [ids[3]]


@pytest.mark.parametrize("stray", [None, 0, 20, 37])
def test_rows_that_are_written_together_are_what_they_are_alone(ledger, maker, stray):
    """Seals and intents of one transaction, more than go into a statement; `stray` has no intent."""
    ids, later = [maker.serve_id(n) for n in range(38)], [maker.serve_id(n, 1) for n in range(38)]
    for n, serve_id in enumerate(ids):
        if n != stray:
            ledger.open_intent(maker.intent(serve_id, caller=f"caller {n}")).result()
    entered, gate = threading.Event(), threading.Event()
    hold = ledger._group.submit(lambda _: (entered.set(), gate.wait(30))[1])
    assert entered.wait(10)
    sealing = []
    for serve_id, other in zip(ids, later, strict=True):
        sealing.append(ledger.seal(serve_id, maker.sealing(serve_id)))
        ledger.open_intent(maker.intent(other))
    gate.set()
    hold.result()
    if stray is not None:
        with pytest.raises(LedgerError, match="no open intent"):
            sealing.pop(stray).result()
    sealed = [future.result() for future in sealing]
    entries = list(ledger.reader.receipts())
    assert [entry.envelope for entry in entries] == [one.envelope for one in sealed]
    assert [entry.caller for entry in entries] == [f"caller {n}" for n in range(38) if n != stray]
    assert {intent.serve_id for intent in ledger.open_intents()} == set(later)


def test_future_cancelled_before_its_turn_does_nothing(ledger, maker):
    entered, gate = threading.Event(), threading.Event()
    hold = ledger._group.submit(lambda _: (entered.set(), gate.wait(30))[1])
    assert entered.wait(10)
    future = ledger.open_intent(maker.intent(maker.serve_id(0)))
    assert future.cancel()
    gate.set()
    hold.result()
    maker.serve(ledger, 1)
    assert ledger.open_intents() == []


def test_async_seal_is_done_although_its_awaiter_is_cancelled(ledger, maker):
    serve_id = maker.serve_id(0)

    async def run():
        assert await ledger.open_intent_async(maker.intent(serve_id)) is None
        sealing = ledger.seal_async(serve_id, maker.sealing(serve_id))
        sealing.cancel()
        await asyncio.gather(*(ledger.open_intent_async(maker.intent(maker.serve_id(n))) for n in range(1, 20)))

    asyncio.run(run())
    assert ledger.reader.by_serve(serve_id) is not None


def test_async_errors_reach_their_own_awaiter(ledger, maker):
    async def run():
        ids = [maker.serve_id(n) for n in range(20)]
        await asyncio.gather(*(ledger.open_intent_async(maker.intent(i)) for i in ids[:10]))
        return await asyncio.gather(*(ledger.seal_async(i, maker.sealing(i)) for i in ids), return_exceptions=True)

    results = asyncio.run(run())
    assert sorted(r.value.seq for r in results[:10]) == list(range(10))
    assert all(type(r) is LedgerError for r in results[10:])


def test_result_for_a_closed_loop_is_dropped(ledger, maker):
    entered, gate = threading.Event(), threading.Event()
    hold = ledger._group.submit(lambda _: (entered.set(), gate.wait(30))[1])
    assert entered.wait(10)

    async def run():
        ledger.open_intent_async(maker.intent(maker.serve_id(0)))

    asyncio.run(run())
    gate.set()
    hold.result()
    maker.serve(ledger, 1)
    assert [i.serve_id for i in ledger.open_intents()] == [maker.serve_id(0)]


def test_idempotency_gives_the_first_serve_once_it_is_sealed(ledger, maker):
    key = Idempotency("key", b"a" * 32)
    first, second = maker.serve_id(0), maker.serve_id(1)
    assert ledger.open_intent(maker.intent(first, idempotency=key)).result() is None
    with pytest.raises(Conflict) as in_flight:
        ledger.open_intent(maker.intent(second, idempotency=key)).result()
    assert in_flight.value.code == "idempotency_in_flight"
    ledger.seal(first, maker.sealing(first)).result()
    assert ledger.open_intent(maker.intent(second, idempotency=key)).result() == first
    assert ledger.open_intents() == []


@pytest.mark.parametrize("sealed", [False, True])
def test_idempotency_refuses_another_body(ledger, maker, sealed):
    first = maker.serve_id(0)
    ledger.open_intent(maker.intent(first, idempotency=Idempotency("key", b"a" * 32))).result()
    if sealed:
        ledger.seal(first, maker.sealing(first)).result()
    with pytest.raises(Conflict) as mismatch:
        ledger.open_intent(maker.intent(maker.serve_id(1), idempotency=Idempotency("key", b"b" * 32))).result()
    assert mismatch.value.code == "idempotency_mismatch"


def test_idempotency_keys_belong_to_their_caller(ledger, maker):
    key = Idempotency("key", b"a" * 32)
    for n, caller in enumerate(("alice", "bob")):
        intent = maker.intent(maker.serve_id(n), caller=caller, idempotency=key)
        assert ledger.open_intent(intent).result() is None


def test_idempotency_lasts_over_a_restart_and_an_interrupted_serve(path, maker):
    key, first = Idempotency("key", b"a" * 32), maker.serve_id(0)
    with Ledger.open(path, steward=maker.steward) as ledger:
        ledger.open_intent(maker.intent(first, idempotency=key)).result()
    with Ledger.open(path, steward=maker.steward) as ledger:
        with pytest.raises(Conflict):
            ledger.open_intent(maker.intent(maker.serve_id(1), idempotency=key)).result()
        (left,) = ledger.open_intents()
        ledger.seal(left.serve_id, maker.sealing(left.serve_id)).result()
        assert ledger.open_intent(maker.intent(maker.serve_id(1), idempotency=key)).result() == first


def test_idempotency_key_of_many_at_once_is_given_to_one(ledger, maker):
    key = Idempotency("key", b"a" * 32)

    async def run():
        intents = [maker.intent(maker.serve_id(n), idempotency=key) for n in range(32)]
        return await asyncio.gather(*(ledger.open_intent_async(i) for i in intents), return_exceptions=True)

    results = asyncio.run(run())
    assert results.count(None) == 1
    assert sum(isinstance(r, Conflict) for r in results) == 31
    assert len(ledger.open_intents()) == 1


def test_checkpoint_counts_what_is_sealed(ledger, maker):
    assert ledger.reader.last_checkpoint() is None
    empty = ledger.checkpoint(maker.checkpointing).result()
    assert (empty.value.count, empty.value.head) == (0, None)
    last = [maker.serve(ledger, n) for n in range(3)][-1]
    made = ledger.checkpoint(maker.checkpointing).result()
    assert (made.value.count, made.value.head) == (3, last.id)
    envelope = ledger.reader.last_checkpoint()
    assert verify(envelope, CHECKPOINT_TYPE, {maker.steward}).id == made.id


def test_checkpoint_of_another_count_is_refused(ledger, maker):
    maker.serve(ledger, 0)
    with pytest.raises(LedgerError, match="counts 0 receipts, expected 1"):
        ledger.checkpoint(lambda _: maker.checkpointing(Position(0, None))).result()
    assert ledger.reader.last_checkpoint() is None


def test_kept_is_purged_when_its_time_is_over(ledger, maker):
    kept = [Kept(SECRET, b"output", "text", 100), Kept(SECRET, b"output", None, 200)]
    for n, each in enumerate(kept):
        maker.serve(ledger, n, kept=each)
    assert [ledger.reader.kept(maker.serve_id(n)) for n in range(3)] == [*kept, None]
    assert ledger.purge_kept(99).result() == 0
    assert ledger.purge_kept(100).result() == 1
    assert [ledger.reader.kept(maker.serve_id(n)) for n in range(2)] == [None, kept[1]]
    assert ledger.reader.count() == 2


def test_purge_leaves_no_trace_in_the_files(path, maker):
    def holds() -> bool:
        return any(SECRET in file.read_bytes() for file in path.parent.iterdir())

    big = Kept(SECRET * 1000, SECRET, SECRET.decode() * 1000, 100)
    with Ledger.open(path, steward=maker.steward) as ledger:
        maker.serve(ledger, 0, kept=big)
    assert holds()
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.purge_kept(100).result() == 1
        log = path.with_name("ledger.db-wal").stat().st_size
    assert log == 0  # merged before the purge was acknowledged
    assert not holds()


def test_receipts_cannot_be_changed_or_removed_by_sql(path, maker):
    maker.fill(path, 2, checkpoint=True)
    db = sqlite3.connect(path)
    for sql in (
        "UPDATE receipts SET caller = 'other'",
        "DELETE FROM receipts",
        "DELETE FROM checkpoints",
        "UPDATE checkpoints SET count = 0",
        "INSERT INTO receipts VALUES (5, randomblob(32), randomblob(16), '', '', '')",
        "INSERT INTO receipts VALUES (1, randomblob(32), randomblob(16), '', '', '')",
        "INSERT OR REPLACE INTO receipts SELECT 2, receipt_id, randomblob(16), '', '', '' FROM receipts LIMIT 1",
        "INSERT OR REPLACE INTO receipts SELECT 2, randomblob(32), serve_id, '', '', '' FROM receipts LIMIT 1",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(sql)
    db.close()


def test_seal_after_a_takeover_is_refused(ledger, maker):
    serve_id = maker.serve_id(0)
    ledger.open_intent(maker.intent(serve_id)).result()
    db = sqlite3.connect(ledger.path, isolation_level=None)
    db.execute("UPDATE meta SET owner_epoch = owner_epoch + 1")
    db.close()
    for future in (
        ledger.seal(serve_id, maker.sealing(serve_id)),
        ledger.open_intent(maker.intent(maker.serve_id(1))),
        ledger.checkpoint(maker.checkpointing),
        ledger.purge_kept(10**18),
    ):
        with pytest.raises(LedgerLocked, match="another owner took over"):
            future.result()
    assert ledger.reader.count() == 0


def test_closed_ledger_takes_nothing(path: Path, maker):
    ledger = Ledger.open(path, steward=maker.steward)
    futures = [ledger.open_intent(maker.intent(maker.serve_id(n))) for n in range(50)]
    ledger.close()
    ledger.close()
    assert [f.result() for f in futures] == [None] * 50
    with pytest.raises(LedgerError, match="closed"):
        ledger.open_intent(maker.intent(maker.serve_id(99)))
    with pytest.raises(LedgerError, match="closed"):
        ledger.reader.count()
    assert sorted(p.name for p in path.parent.iterdir()) == ["ledger.db", "ledger.db.lock"]


def test_idempotency_passes_to_the_serve_that_takes_a_failed_ones_place(ledger, maker):
    failed, second, third = (maker.serve_id(n) for n in range(3))
    key = Idempotency("k", b"m" * 32)
    assert ledger.open_intent(maker.intent(failed, idempotency=key)).result() is None
    with pytest.raises(Conflict):
        ledger.open_intent(maker.intent(second, idempotency=replace(key, after=failed))).result()
    ledger.seal(failed, maker.sealing(failed)).result()
    assert ledger.open_intent(maker.intent(third, idempotency=replace(key, after=second))).result() == failed
    assert ledger.open_intent(maker.intent(second, idempotency=replace(key, after=failed))).result() is None
    ledger.seal(second, maker.sealing(second)).result()
    assert ledger.open_intent(maker.intent(third, idempotency=key)).result() == second
