"""The one path from a request to a sealed receipt."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import Served
from mesh.engine.reference import ReferenceEngine
from mesh.errors import Conflict, EngineUnavailable, LedgerUnwritable, NotFound
from mesh.ledger import Idempotency, Ledger, LedgerReader
from mesh.schema.commitment import output_commitment
from mesh.schema.envelope import CHECKPOINT_TYPE, verify
from mesh.schema.outcome import Fidelity
from mesh.schema.request import payload_digest
from mesh.steward.steward import Repeated, SealedServe, Steward
from tests.steward.serving import in_ledger, serve
from tests.support.stewards import KEY, PROMPT, Client, request, running


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
    assert repr(served) == f"SealedServe({served.receipt_id!r}, None)"  # nothing of what was said
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
