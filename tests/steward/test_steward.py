from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import Served
from mesh.engine.reference import ReferenceEngine
from mesh.errors import Conflict, EngineFailed, EngineUnavailable, LedgerUnwritable, NotFound
from mesh.ledger import Idempotency, Ledger, LedgerReader, check_sequence
from mesh.schema.commitment import output_commitment
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity
from mesh.schema.receipt import Receipt
from mesh.schema.request import payload_digest
from mesh.steward.steward import Repeated, SealedServe, Steward
from tests.support.stewards import KEY, PROMPT, Client, Dishonest, outcome, request, running


async def serve(steward: Steward, engine: Any, client: Client | None = None, **fields: Any) -> SealedServe:
    admitted = await steward.admit(request(**fields), [engine], caller="tests")
    served = await steward.serve(admitted, PROMPT, client or Client(), serve_id=steward.new_serve_id())
    assert isinstance(served, SealedServe)
    return served


def in_ledger(folder: Path) -> list[Receipt]:
    with LedgerReader.open(folder / "ledger.sqlite") as reader:
        sealed = [verify(entry.envelope, RECEIPT_TYPE, {KEY.public}) for entry in reader.receipts()]
    check_sequence((s.value, s.id) for s in sealed)
    return [s.value for s in sealed]


def test_serve_is_sealed_with_its_counts_and_opens(folder: Path) -> None:
    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, ReferenceEngine())

    served = asyncio.run(main())
    (receipt,) = in_ledger(folder)
    assert receipt == served.receipt
    assert receipt.outcome.finish == "length"
    assert receipt.outcome.counted_by == "both"
    assert (receipt.outcome.tokens_in, receipt.outcome.tokens_out, receipt.outcome.tokens_delivered) == (2, 8, 8)
    assert receipt.energy.basis == "absent"
    assert receipt.energy.reason == "no-meter"
    assert receipt.output_commitment == output_commitment(
        served.opening, receipt.request_id, payload_digest(PROMPT), served.tokens
    )
    disclosure = served.disclosure(prompt="hi")
    assert disclosure.output_ids == list(served.tokens)
    assert disclosure.request.id == receipt.request_id


def test_two_serves_of_one_request_do_not_share_an_opening(folder: Path) -> None:
    async def main() -> tuple[SealedServe, SealedServe]:
        async with running(folder) as steward:
            return await serve(steward, ReferenceEngine()), await serve(steward, ReferenceEngine())

    first, second = asyncio.run(main())
    assert first.receipt.request_id == second.receipt.request_id
    assert first.opening != second.opening
    assert first.receipt.output_commitment != second.receipt.output_commitment


def test_cancelled_client_stops_the_engine_within_a_token(folder: Path) -> None:
    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, ReferenceEngine(), Client(leave_after=3), max_tokens=1000)

    served = asyncio.run(main())
    (receipt,) = in_ledger(folder)
    assert receipt.outcome.finish == "cancelled"
    assert 3 <= len(served.tokens) <= 4
    assert receipt.outcome.tokens_out == len(served.tokens)


def test_cancelled_waiter_leaves_a_sealed_receipt(folder: Path) -> None:
    async def main() -> None:
        async with running(folder) as steward:
            client = Client()
            waiter = asyncio.ensure_future(serve(steward, ReferenceEngine(), client, max_tokens=900_000))
            await client.first.wait()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter

    asyncio.run(main())
    (receipt,) = in_ledger(folder)
    assert receipt.outcome.finish == "cancelled"
    assert receipt.outcome.tokens_out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (outcome(weights_digest=bytes(32)), "other-weights"),
        (outcome(delivered_fidelity=3), "other-fidelity"),
    ],
)
def test_engine_that_ran_something_else_is_refused_without_counts(folder: Path, change: Any, reason: str) -> None:
    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(change))

    served = asyncio.run(main())
    assert served.receipt.outcome.to_map() == {"finish": "refused", "reason": reason, "counted_by": "none"}
    assert served.receipt.output_commitment is None
    assert served.tokens == ()


def test_engine_that_hides_its_promised_weights_is_refused(folder: Path) -> None:
    weights = ContentId.of_bytes(b"weights")

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(outcome(weights_digest=None), weights_digest=weights))

    assert asyncio.run(main()).receipt.outcome.reason == "other-weights"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda served: replace(served, tokens=served.tokens[:-1]), "stream-differs"),
        (lambda served: replace(served, tokens=(*served.tokens[:-1], 7)), "stream-differs"),
        (outcome(tokens_out=9), "count-differs"),
        (outcome(tokens_in=1), "count-differs"),
        (outcome(finish="cancelled"), "stopped-uncalled"),
        (outcome(finish="interrupted"), "finish-unknown"),
        (outcome(finish="engine-error", reason="out-of-memory"), "out-of-memory"),
    ],
)
def test_engine_that_breaks_a_promise_is_sealed_as_failed(folder: Path, change: Any, reason: str) -> None:
    client = Client()

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Dishonest(change), client)

    served = asyncio.run(main())
    assert (served.receipt.outcome.finish, served.receipt.outcome.reason) == ("engine-error", reason)
    # what the client was shown is what is committed to, whatever the engine says afterwards
    assert list(served.tokens) == client.got
    assert served.receipt.outcome.tokens_out == 8
    assert served.receipt.output_commitment is not None


def test_length_without_max_tokens_is_a_broken_promise(folder: Path) -> None:
    class Short(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            short = type(request).of(**{**request.to_map(), "max_tokens": 3})
            return await super().serve(short, prompt, sink)

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Short())

    assert asyncio.run(main()).receipt.outcome.reason == "length-differs"


def test_engine_that_fails_in_mid_serve_is_sealed_with_what_it_made(folder: Path) -> None:
    class Failing(ReferenceEngine):
        error: Exception = EngineFailed("the child died")

        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            sink.put(11)
            sink.put(12)
            raise self.error

    async def main() -> list[SealedServe]:
        async with running(folder) as steward:
            engine = Failing()
            declared = await serve(steward, engine)
            engine.error = ZeroDivisionError("not declared")
            return [declared, await serve(steward, engine), await serve(steward, ReferenceEngine())]

    declared, undeclared, after = asyncio.run(main())
    for failed in (declared, undeclared):
        assert failed.receipt.outcome.finish == "engine-error"
        assert failed.receipt.outcome.reason == "engine-failed"
        assert failed.tokens == (11, 12)
        assert isinstance(failed.error, EngineFailed)
    assert after.receipt.outcome.finish == "length"
    assert [r.seq for r in in_ledger(folder)] == [0, 1, 2]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_token_outside_the_format_is_a_failure(folder: Path, token: int) -> None:
    class Odd(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            sink.put(token)
            raise AssertionError("put should have refused")

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Odd())

    served = asyncio.run(main())
    assert served.receipt.outcome.finish == "engine-error"
    assert served.tokens == ()


def test_engine_cannot_put_more_than_max_tokens(folder: Path) -> None:
    class Endless(ReferenceEngine):
        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            while True:
                sink.put(1)

    async def main() -> SealedServe:
        async with running(folder) as steward:
            return await serve(steward, Endless())

    served = asyncio.run(main())
    assert served.receipt.outcome.finish == "engine-error"
    assert len(served.tokens) == 8


def test_idempotency_key_gives_the_first_serve_again(folder: Path) -> None:
    async def main() -> None:
        async with running(folder) as steward:
            engine = ReferenceEngine()
            admitted = await steward.admit(request(), [engine], caller="tests")

            async def once(body: bytes) -> Any:
                return await steward.serve(
                    admitted,
                    PROMPT,
                    Client(),
                    serve_id=steward.new_serve_id(),
                    idempotency=Idempotency("k", steward.mac(body)),
                )

            first = await once(b"body")
            again = await once(b"body")
            assert again == Repeated(first.receipt.serve_id)
            with pytest.raises(Conflict) as caught:
                await once(b"other body")
            assert caught.value.code == "idempotency_mismatch"

    asyncio.run(main())
    assert len(in_ledger(folder)) == 1


def test_killed_process_leaves_serves_that_the_next_start_seals(folder: Path) -> None:
    """A real process is killed in mid-serve; the ones it had sealed stay, the others are sealed as interrupted."""
    script = textwrap.dedent(f"""
        import asyncio, sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from tests.support.stewards import PROMPT, Client, request, running
        from mesh.engine.reference import ReferenceEngine

        class Stuck(ReferenceEngine):
            async def serve(self, request, prompt, sink):
                sink.put(1)
                print("stuck", flush=True)
                await asyncio.Event().wait()

        async def main():
            async with running(Path({str(folder)!r})) as steward:
                done = await steward.admit(request(), [ReferenceEngine()], caller="tests")
                await steward.serve(done, PROMPT, Client(), serve_id=steward.new_serve_id())
                stuck = await steward.admit(request(), [Stuck()], caller="tests")
                await asyncio.gather(*(
                    steward.serve(stuck, PROMPT, Client(), serve_id=steward.new_serve_id()) for _ in range(3)
                ))
        asyncio.run(main())
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        for _ in range(3):
            assert process.stdout.readline() == b"stuck\n"
        process.send_signal(signal.SIGKILL)
        process.wait()

    async def main() -> None:
        async with running(folder) as steward:
            recovered = await steward.recover()
            assert len(recovered) == 3
            await serve(steward, ReferenceEngine())

    asyncio.run(main())
    receipts = in_ledger(folder)
    assert [r.outcome.finish for r in receipts] == ["length", "interrupted", "interrupted", "interrupted", "length"]
    for receipt in receipts[1:4]:
        assert receipt.outcome.to_map() == {"finish": "interrupted", "counted_by": "none"}
        assert receipt.output_commitment is None
        assert receipt.energy.to_map() == {"basis": "absent", "sources": [], "reason": "interrupted"}


def test_disclosure_is_had_only_where_it_was_kept(folder: Path) -> None:
    async def main() -> None:
        async with running(folder) as steward:
            served = await serve(steward, ReferenceEngine())
            entry = steward.reader.by_serve(served.receipt.serve_id)
            assert entry is not None
            with pytest.raises(NotFound) as caught:
                steward.disclosure(entry)
            assert caught.value.code == "not_kept"
        async with running(folder, keep_ns=10**15) as steward:
            served = await serve(steward, ReferenceEngine())
            entry = steward.reader.by_serve(served.receipt.serve_id)
            assert entry is not None
            assert steward.disclosure(entry) == served.disclosure()

    asyncio.run(main())


def test_disclosure_ends_with_its_time(folder: Path) -> None:
    now = [10**18]

    async def main() -> None:
        async with running(folder, keep_ns=100, clock_ns=lambda: now[0]) as steward:
            served = await serve(steward, ReferenceEngine())
            entry = steward.reader.by_serve(served.receipt.serve_id)
            assert entry is not None
            steward.disclosure(entry)
            now[0] += 100
            with pytest.raises(NotFound):
                steward.disclosure(entry)

    asyncio.run(main())


def test_clock_that_steps_back_gives_no_negative_span(folder: Path) -> None:
    ticks = iter([10**18] + [10**17] * 100)

    async def main() -> SealedServe:
        async with running(folder, clock_ns=lambda: next(ticks)) as steward:
            admitted = await steward.admit(request(), [ReferenceEngine()], caller="tests")
            served = await steward.serve(admitted, PROMPT, Client(), serve_id=bytes(16))
            assert isinstance(served, SealedServe)
            return served

    receipt = asyncio.run(main()).receipt
    assert receipt.started_ns <= receipt.ended_ns


def test_closing_waits_for_running_serves_and_leaves_a_checkpoint(folder: Path) -> None:
    async def main() -> None:
        async with running(folder) as steward:
            client = Client()
            task = asyncio.ensure_future(serve(steward, ReferenceEngine(), client, max_tokens=2000))
            await client.first.wait()
            await steward.close()
            assert task.done() or not steward._running
            await task

    asyncio.run(main())
    with LedgerReader.open(folder / "ledger.sqlite") as reader:
        envelope = reader.last_checkpoint()
    assert envelope is not None
    checkpoint = verify(envelope, CHECKPOINT_TYPE, {KEY.public}).value
    assert checkpoint.count == 1
    assert checkpoint.head == in_ledger(folder)[0].id


def test_many_callers_are_all_sealed_without_a_gap(folder: Path) -> None:
    async def main() -> set[bytes]:
        async with running(folder) as steward:
            engine = ReferenceEngine()
            served = await asyncio.gather(*(serve(steward, engine, max_tokens=1 + i % 5) for i in range(200)))
            return {bytes(s.sealed.id) for s in served}

    ids = asyncio.run(main())
    assert {bytes(r.id) for r in in_ledger(folder)} == ids
    assert len(ids) == 200


def test_full_disk_after_the_engine_keeps_the_serve_until_it_can_be_sealed(folder: Path) -> None:
    """Nothing is told to be sealed that is not; once there is room, what ran is sealed before anything new runs."""

    class FillsTheDisk(ReferenceEngine):
        ledger: Ledger | None = None

        async def serve(self, request: Any, prompt: Any, sink: Any) -> Served:
            assert self.ledger is not None
            await limit_pages(self.ledger, 1)
            return await super().serve(request, prompt, sink)

    async def main() -> None:
        async with running(folder) as steward:
            ledger: Ledger = steward._ledger
            await serve(steward, ReferenceEngine())
            engine = FillsTheDisk()
            engine.ledger = ledger
            with pytest.raises(LedgerUnwritable):
                await until_full(steward, engine)
            assert not steward.writable
            with pytest.raises(LedgerUnwritable):
                await until_full(steward, ReferenceEngine())
            await limit_pages(ledger, 1_000_000)
            await serve(steward, ReferenceEngine())
            assert steward.writable

    asyncio.run(main())
    assert all(r.outcome.finish == "length" for r in in_ledger(folder))
    with LedgerReader.open(folder / "ledger.sqlite") as reader:
        assert reader.open_intents() == []


async def until_full(steward: Steward, engine: Any) -> None:
    for _ in range(200):
        await serve(steward, engine)


async def limit_pages(ledger: Ledger, pages: int) -> None:
    """SQLite's own page limit stands in for the end of the disk."""
    await asyncio.wrap_future(ledger._group.submit(lambda tx: tx.db.execute(f"PRAGMA max_page_count = {pages}")))


def test_unready_engine_is_not_asked(folder: Path) -> None:
    class Restarting(ReferenceEngine):
        async def ready(self) -> None:
            raise EngineUnavailable("restarting in 2 s")

    async def main() -> None:
        async with running(folder) as steward:
            with pytest.raises(EngineUnavailable, match="restarting in 2 s"):
                await serve(steward, Restarting())
            cheaper = Restarting(est_uj_per_token=1)
            admitted = await steward.admit(request(), [cheaper, ReferenceEngine("b")], caller="tests")
            assert admitted.engine.recipe_id == "b"

    asyncio.run(main())
    with contextlib.suppress(FileNotFoundError):
        assert in_ledger(folder) == []


def test_claim_of_determinism_is_the_engines_per_request(folder: Path) -> None:
    class OnlyGreedy(ReferenceEngine):
        def deterministic(self, request: Any) -> bool:
            return request.sampling.temperature_u == 0

    async def main() -> list[bool]:
        async with running(folder) as steward:
            engine = OnlyGreedy(fidelity=Fidelity.F1)
            greedy = request().sampling
            warm = type(greedy).of(**{**greedy.to_map(), "temperature_u": 700_000, "seed": 5})
            claims = []
            for sampling in (greedy, warm, greedy):
                served = await serve(steward, engine, sampling=sampling)
                claims.append(served.receipt.engine.deterministic)
            return claims

    assert asyncio.run(main()) == [True, False, True]
