"""The decision table on real GGUF engines: each serve sealed by a real steward and replayed from its real ledger.

Rows 6 (another backend, recipe, weights or settings) and 4 are shown through the commands in tests/end_to_end. Row 13
has no GGUF engine: they all name their weights.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.replay.replayer import replay
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.request import pack_ids
from mesh.steward.steward import SealedServe
from tests.replay.sealing import told
from tests.replay.serving import CHAT, Lying, Meddling, Room, swapping
from tests.support.models import smollm2_path
from tests.support.stewards import KEY, Client, running
from tests.support.tiny_gguf import write_tiny_gguf

SEEDED = {"temperature_u": 900_000, "top_p_u": 950_000, "seed": 7}
LONG = 1900  # tokens: many more than an engine makes before it hears that nobody wants them


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner, tiny: Path) -> Iterator[GgufEngine]:
    engine = runner.run(GgufEngine.start(GgufConfig(tiny, "tiny")))
    yield engine
    runner.run(engine.close())


@pytest.fixture
def stack(runner: asyncio.Runner) -> Iterator[AsyncExitStack]:
    stack = AsyncExitStack()
    yield stack
    runner.run(stack.aclose())


@pytest.fixture
def room(runner: asyncio.Runner, stack: AsyncExitStack, tmp_path: Path, engine: GgufEngine) -> Room:
    return Room(runner, runner.run(stack.enter_async_context(running(tmp_path, Lying))), engine)


def another(room: Room, stack: AsyncExitStack, config: GgufConfig) -> GgufEngine:
    """An engine of the test's own, closed after it."""
    engine = room.runner.run(GgufEngine.start(config))
    stack.push_async_callback(engine.close)
    return engine


def killing(engine: GgufEngine, *, run: int) -> Meddling:
    """The engine, whose child is killed while it decodes the second id of its run number `run`."""

    def change(number: int, index: int, token: int) -> int:
        if (number, index) == (run, 1):
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
        return token

    return Meddling(engine, change)


# Verified, and what it says beside.


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
def test_honest_serve_is_verified_by_an_engine_started_anew(
    room: Room, stack: AsyncExitStack, tiny: Path, sampling: dict[str, Any]
) -> None:
    serve = room.serve(**sampling)
    fresh = another(room, stack, GgufConfig(tiny, "tiny", slots=1))
    for by, method, row in (("auto", "prefill", 8), ("decode", "decode", 10)):
        verdict = room.replay(serve, fresh, by=by)
        assert told(verdict) == ("verified", row, None, None)
        assert (verdict.method, verdict.prompt, verdict.output, verdict.ending) == (method, "checked", "matches", None)
    assert fresh.process != serve.receipt.engine.process


def test_answer_changed_after_sealing_is_verified_but_differs(room: Room) -> None:
    serve = room.serve()
    changed = list(serve.tokens)
    changed[3] ^= 1
    for output in (changed, serve.tokens[:-1], [*serve.tokens, 1]):
        verdict = room.replay(serve, output=pack_ids(output))
        assert (verdict.kind, verdict.row, verdict.output, verdict.exit_code) == ("verified", 10, "differs", 10)


def test_answer_that_is_not_disclosed_is_verified_and_said(room: Room) -> None:
    verdict = room.replay(room.serve(), output=None)
    assert (verdict.kind, verdict.output, verdict.exit_code) == ("verified", "not-given", 0)


def test_prompt_is_unchecked_where_the_engine_was_handed_other_words(room: Room) -> None:
    serve = room.serve(handed=CHAT.replace("far", "odd"))
    assert len(serve.payload) == serve.request.prompt_tokens
    verdict = room.replay(serve)
    assert (verdict.kind, verdict.prompt) == ("verified", "unchecked")


# Cancelled by the client.


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
def test_stream_cancelled_by_the_client_is_verified_to_its_cut(room: Room, sampling: dict[str, Any]) -> None:
    serve = room.serve(client=Client(leave_after=5), max_tokens=LONG, **sampling)
    assert serve.receipt.outcome.finish == "cancelled"
    assert 5 <= len(serve.tokens) < LONG
    for output, row, says in (({}, 8, "matches"), ({"output": None}, 10, "not-given")):
        verdict = room.replay(serve, **output)
        assert told(verdict) == ("verified", row, None, None)
        assert (verdict.ending, verdict.output, verdict.prompt) == ("cut", says, "checked")


def test_stream_cancelled_before_its_first_id_is_verified(room: Room) -> None:
    client = Client()
    client.cancelled.set()
    serve = room.serve(client=client)
    assert (serve.receipt.outcome.finish, serve.tokens) == ("cancelled", ())
    assert (room.replay(serve).row, room.replay(serve).ending) == (8, "cut")


def test_cancelling_does_not_hide_a_falsified_id(room: Room) -> None:
    serve = room.serve(swapping(room.engine, 2), client=Client(leave_after=5), max_tokens=LONG)
    verdict = room.replay(serve)
    assert (verdict.kind, verdict.row, verdict.first_difference) == ("diverged", 15, 2)


# Rows 1 to 3, and blueprints: nothing runs.


def test_row_1_disclosure_of_another_serve(room: Room) -> None:
    serve, other = room.serve(), room.serve(max_tokens=13)
    assert told(room.replay(serve, request=other.request)) == ("not-replayable", 1, "other-request", "request")
    twice = room.serve()
    mixed = room.replay(serve, serve_id=twice.receipt.serve_id, opening=twice.opening)
    assert told(mixed) == ("not-replayable", 1, "other-request", "serve_id")


def test_row_2_serve_whose_engine_died(room: Room, stack: AsyncExitStack, tiny: Path) -> None:
    own = another(room, stack, GgufConfig(tiny, "tiny", slots=1))
    serve = room.serve(killing(own, run=0), max_tokens=LONG)
    assert serve.receipt.outcome.finish == "engine-error"
    assert serve.tokens
    verdict = room.replay(serve)
    assert (told(verdict), verdict.detail) == (("not-replayable", 2, "incomplete-serve", "finish"), "engine-error")


# Serves until it is killed, which it does itself with the first id.
_DYING = """
    import asyncio, os, signal, sys
    from contextlib import AsyncExitStack
    from pathlib import Path
    from mesh.engine.gguf import GgufEngine
    from mesh.engine.gguf_described import GgufConfig
    from tests.replay.serving import Lying, Room
    from tests.support.stewards import Client, running

    class Last(Client):
        def put(self, token):
            os.kill(os.getpid(), signal.SIGKILL)

    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        engine = runner.run(GgufEngine.start(GgufConfig(Path(sys.argv[1]), "tiny", slots=1)))
        steward = runner.run(stack.enter_async_context(running(Path(sys.argv[2]), Lying)))
        Room(runner, steward, engine).serve(client=Last(), max_tokens=1000)
"""


def test_row_2_serve_that_a_dying_gateway_interrupted(
    runner: asyncio.Runner, engine: GgufEngine, tiny: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_DYING), str(tiny), str(tmp_path)]
    died = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert died.returncode == -signal.SIGKILL

    async def recover_and_replay() -> None:
        async with running(tmp_path) as steward:
            (sealed,) = await steward.recover()
            assert sealed.value.outcome.finish == "interrupted"
            verdict = await replay(sealed.envelope, None, engine, {steward.public})
            assert (told(verdict), verdict.detail) == (
                ("not-replayable", 2, "incomplete-serve", "finish"), "interrupted",
            )  # fmt: skip

    runner.run(recover_and_replay())


def test_row_3_steward_that_commits_to_nothing(room: Room) -> None:
    serve = room.serve(lies={"output_commitment": None})
    assert told(room.replay(serve)) == ("not-replayable", 3, "no-commitment", None)


def test_row_6_blueprint_that_this_engine_does_not_run(room: Room) -> None:
    serve = room.serve(lies={"engine": {"blueprint_id": b"\x01" * 32}})
    assert told(room.replay(serve)) == ("not-replayable", 6, "other-blueprint", "blueprint_id")


# Rows 5 and 12: counts that a dishonest steward inflates.

STOPPED = 5  # ids that the serve below makes of its 12


def stopped_early(room: Room, lies: dict[str, Any]) -> SealedServe:
    whole = room.serve().tokens
    assert whole[STOPPED - 1] not in whole[: STOPPED - 1]
    serve = room.serve(stop_ids=[whole[STOPPED - 1]], lies=lies)
    assert len(serve.tokens) == STOPPED
    return serve


def test_serve_that_stopped_is_verified_where_nobody_lies(room: Room) -> None:
    serve = stopped_early(room, {})
    assert serve.receipt.outcome.finish == "stop"
    assert (room.replay(serve).row, room.replay(serve, output=None).row) == (8, 10)


@pytest.mark.parametrize(("disclosed", "row"), [({}, 5), ({"output": None}, 12)], ids=["opened", "not-opened"])
@pytest.mark.parametrize(
    ("field", "lies"),
    [
        ("tokens_out", {"outcome": {"tokens_out": 9}}),
        ("tokens_out", {"outcome": {"tokens_out": 12, "finish": "length"}}),
        ("tokens_in", {"outcome": {"tokens_in": 4000}}),
        ("tokens_accepted", {"outcome": {"tokens_accepted": 9}}),
        ("tokens_delivered", {"outcome": {"tokens_delivered": 9}}),
        ("finish", {"outcome": {"finish": "length"}}),
        ("max_tokens", {"max_tokens": 4000}),
    ],
    ids=str,
)
def test_rows_5_and_12_claim_that_the_committed_ids_disprove(
    room: Room, field: str, lies: dict[str, Any], disclosed: dict[str, Any], row: int
) -> None:
    verdict = room.replay(stopped_early(room, lies), **disclosed)
    assert told(verdict) == ("diverged", row, None, field)
    assert verdict.exit_code == 10


@pytest.mark.parametrize("disclosed", [{}, {"output": None}], ids=["opened", "not-opened"])
@pytest.mark.parametrize(("field", "lie"), [("finish", "stop"), ("tokens_accepted", 3)])
def test_row_12_claim_that_only_a_re_run_disproves(
    room: Room, field: str, lie: object, disclosed: dict[str, Any]
) -> None:
    verdict = room.replay(room.serve(lies={"outcome": {field: lie}}), **disclosed)
    assert told(verdict) == ("diverged", 12, None, field)


# Row 7: no determinism. Both engines have one settings document: how many serves run at once is no part of it.


def test_row_7_engine_whose_serves_change_each_other(room: Room, stack: AsyncExitStack, tiny: Path) -> None:
    alone = another(room, stack, GgufConfig(tiny, "tiny", kv_type="f16"))
    together = another(room, stack, GgufConfig(tiny, "tiny", kv_type="f16", together_always=True))
    assert together.self_check.results["step"] is not None
    claimed, unclaimed = room.serve(alone), room.serve(together)
    assert claimed.receipt.engine.deterministic
    assert not unclaimed.receipt.engine.deterministic
    assert claimed.receipt.engine.settings_digest == unclaimed.receipt.engine.settings_digest
    assert room.replay(claimed, alone).row == 8
    assert room.replay(claimed, alone, by="decode").row == 10
    assert told(room.replay(claimed, together)) == ("not-replayable", 7, "engine-samples", None)
    for engine in (alone, together):
        assert told(room.replay(unclaimed, engine)) == ("not-replayable", 7, "not-claimed", None)


# Rows 9 and 11: runs that show nothing.


def test_row_9_falsified_serve_is_unattributed_while_nothing_is_opened(room: Room) -> None:
    honest, falsified = room.serve(), room.serve(swapping(room.engine, 4))
    assert told(room.replay(falsified, output=None)) == ("not-replayable", 9, "unattributed", None)
    output = pack_ids(honest.tokens)
    assert told(room.replay(falsified, output=output)) == ("not-replayable", 9, "unattributed", None)


@pytest.mark.parametrize("changed", ["payload", "opening"])
def test_row_9_disclosure_with_one_part_changed(room: Room, changed: str) -> None:
    serve = room.serve()
    other = {"payload": pack_ids([*serve.payload[:-1], serve.payload[-1] ^ 1]), "opening": bytes(32)}
    assert told(room.replay(serve, **{changed: other[changed]})) == ("not-replayable", 9, "unattributed", None)


def test_rows_9_and_11_child_killed_while_it_replays(room: Room, stack: AsyncExitStack, tiny: Path) -> None:
    own = another(room, stack, GgufConfig(tiny, "tiny", slots=1))
    # cut serves: a re-run would go on for long after the kill
    honest = room.serve(client=Client(leave_after=5), max_tokens=LONG)
    falsified = room.serve(swapping(room.engine, 2), client=Client(leave_after=5), max_tokens=LONG)

    verdict = room.replay(honest, killing(own, run=0), by="decode")
    assert told(verdict) == ("not-replayable", 9, "engine-failed", None)
    assert verdict.detail is not None
    assert "SIGKILL" in verdict.detail
    assert "started again" in (room.replay(honest, own).detail or "")
    room.runner.run(own.until_up())
    assert room.replay(honest, own).row == 8

    assert told(room.replay(falsified, killing(own, run=1))) == ("not-replayable", 11, "engine-failed", None)
    room.runner.run(own.until_up())
    assert room.replay(falsified, own).row == 15


def test_row_11_engine_whose_second_run_differs(room: Room) -> None:
    falsified = room.serve(swapping(room.engine, 4))
    # no engine that passes its self-check does this by itself: the last id of its second run is changed
    unstable = Meddling(room.engine, lambda run, index, token: token ^ 1 if (run, index) == (1, 11) else token)
    assert told(room.replay(falsified, unstable)) == ("not-replayable", 11, "unstable", None)
    assert unstable.runs == 2


# Rows 14 and 15: other ids.


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("at", [0, 4, 11])
def test_row_15_falsified_id_is_found_with_its_margin(room: Room, at: int, sampling: dict[str, Any]) -> None:
    honest = room.serve(**sampling).tokens
    serve = room.serve(swapping(room.engine, at), **sampling)
    verdict = room.replay(serve)
    assert told(verdict) == ("diverged", 15, None, None)
    assert (verdict.first_difference, verdict.served, verdict.replayed) == (at, honest[at] ^ 1, honest[at])
    assert verdict.margin is not None
    assert verdict.margin > 0
    assert verdict.exit_code == 10


def test_row_15_margin_is_unknown_where_the_request_moves_the_logits(room: Room) -> None:
    verdict = room.replay(room.serve(swapping(room.engine, 4), frequency_penalty_u=500_000))
    assert (verdict.row, verdict.first_difference, verdict.margin) == (15, 4, None)


def test_row_14_id_exchanged_for_its_equal_is_a_tie(room: Room, stack: AsyncExitStack, tmp_path: Path) -> None:
    honest = room.serve().tokens
    # the output's row of an id that the model does not choose here becomes that of one it does choose
    at = 6
    assert honest.index(honest[at]) == at
    twin = next(i for i in range(honest[at] + 1, 256) if i not in honest)
    path = write_tiny_gguf(tmp_path / "twins.gguf", twins=(honest[at], twin))
    tied = another(room, stack, GgufConfig(path, "tiny"))
    assert room.serve(tied).tokens == honest
    exchanged = room.serve(swapping(tied, at, twin))
    assert told(room.replay(exchanged, tied)) == ("not-replayable", 14, "tie", None)
    # a tie excuses the place where it is and no other
    verdict = room.replay(room.serve(swapping(tied, at - 1)), tied)
    assert (verdict.row, verdict.first_difference) == (15, at - 1)


@pytest.mark.deep
@pytest.mark.real_model
def test_rows_8_10_and_15_on_the_packaged_model(runner: asyncio.Runner, stack: AsyncExitStack, tmp_path: Path) -> None:
    engine = runner.run(GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", slots=1, context_tokens=128)))
    stack.push_async_callback(engine.close)
    room = Room(runner, runner.run(stack.enter_async_context(running(tmp_path, Lying))), engine)
    cut = room.serve(client=Client(leave_after=5), max_tokens=90, **SEEDED)
    for by, row in (("auto", 8), ("decode", 10)):
        verdict = room.replay(cut, by=by)
        assert (verdict.row, verdict.ending, verdict.prompt, verdict.output) == (row, "cut", "checked", "matches")
    falsified = room.serve(swapping(engine, 3), max_tokens=8)
    verdict = room.replay(falsified)
    assert (verdict.row, verdict.first_difference) == (15, 3)
    assert verdict.margin is not None
    assert verdict.margin > 0
    entry = room.steward.reader.by_serve(falsified.receipt.serve_id)
    assert entry is not None
    assert verify(entry.envelope, RECEIPT_TYPE, (KEY.public,)).value == falsified.receipt
