"""Every way an answer can end after it began: each is sealed, and each says honestly how it ended."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineFailed
from mesh.gateway import completions
from mesh.gateway.app import Gateway
from mesh.ledger import Ledger
from mesh.schema.request import ServeRequest
from tests.gateway.serving import CHAT, House, Scripted, ask, content, house, raw_request, script
from tests.support.stewards import outcome


async def begun(gate: House, body: dict[str, Any], marker: bytes) -> asyncio.StreamWriter:
    """A raw stream of which everything up to `marker` has been read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    writer.write(raw_request(body))
    if marker:
        await reader.readuntil(marker)
    return writer


def test_client_that_leaves_a_stream_stops_the_engine_and_is_sealed(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"word "] * 9, hold_at=3)
        async with house(tmp_path, engine) as gate:
            writer = await begun(gate, script(stream=True, max_tokens=9), b"word ")
            await engine.held.wait()
            writer.transport.abort()
            receipt = (await gate.last_receipt(1)).value
            assert (receipt.outcome.finish, receipt.outcome.tokens_out) == ("cancelled", 3)
            assert 1 <= receipt.outcome.tokens_delivered <= 3
            assert receipt.output_commitment is not None

    asyncio.run(main())


def test_client_that_leaves_a_plain_request_gets_nothing_and_is_sealed(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"word "] * 9, hold_at=3)
        async with house(tmp_path, engine) as gate:
            writer = await begun(gate, script(max_tokens=9), b"")
            await engine.held.wait()
            writer.transport.abort()
            receipt = (await gate.last_receipt(1)).value
            told = receipt.outcome
            assert (told.finish, told.tokens_out, told.tokens_delivered) == ("cancelled", 3, 0)

    asyncio.run(main())


def test_client_that_reads_nothing_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mesh.access")

    async def main() -> None:
        # far more than all buffers on the way hold
        engine = Scripted([b"x" * 1_000_000] * 64)
        async with house(tmp_path, engine, write_timeout_s=1) as gate:
            writer = await begun(gate, script(stream=True, max_tokens=64), b"")
            told = (await gate.last_receipt(1)).value.outcome
            assert told.finish in ("cancelled", "stop", "length")  # an engine may be done before the client is given up
            assert told.tokens_delivered < 64
            writer.transport.abort()

    asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "mesh.access"]
    assert f"POST {CHAT} 499 " in line


def test_many_clients_leaving_at_any_time_leave_one_receipt_each_and_no_slot_taken(tmp_path: Path) -> None:
    async def main() -> None:
        engine = ReferenceEngine(slots=4, work_per_token=2000)
        async with house(tmp_path, engine, queue=64) as gate:

            async def leave_after(delay_ms: int) -> None:
                task = asyncio.ensure_future(gate.post(ask(stream=delay_ms % 2 == 0, max_tokens=200)))
                await asyncio.wait([task], timeout=delay_ms / 1000)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            await asyncio.gather(*(leave_after(n) for n in range(0, 60, 2)), *(leave_after(n) for n in range(1, 60, 4)))
            completions = gate.gateway._completions
            while completions._running or gate.gateway.backends.all[0].room.waiting:
                await asyncio.sleep(0.005)
            assert gate.gateway.backends.all[0].room.running == 0
            assert gate.steward.reader.open_intents() == []
            assert [entry.seq for entry in gate.steward.reader.receipts()] == list(range(gate.steward.reader.count()))
            assert (await gate.post(ask())).status == 200

    asyncio.run(main())


def test_engine_that_dies_before_the_first_text_is_a_502_with_a_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"a", b"b"], die_at=0)) as gate:
            for streamed in (False, True):
                reply = await gate.post(script(stream=streamed))
                assert reply.code == (502, "engine-failed")
                assert reply.error["type"] == "server_error"
                receipt_id = reply.headers["Mesh-Receipt"]
                assert reply.error["mesh"]["receipt_id"] == receipt_id
                receipt = gate.receipt(receipt_id).value
                assert receipt.outcome.finish == "engine-error"
                assert receipt.serve_id.hex() == reply.headers["Mesh-Serve"].replace("-", "")

    asyncio.run(main())


def test_engine_that_dies_in_a_stream_ends_it_in_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"a", b"b"], die_at=1, hold_at=1)) as gate, gate.sdk() as client:
            engine = gate.gateway.backends.all[0].engine
            assert isinstance(engine, Scripted)
            engine.go.set()
            reply = await gate.post(script(stream=True))
            assert (reply.status, reply.lines[-1][:14]) == (200, 'data: {"error"')
            assert not any("[DONE]" in line or "mesh-receipt" in line for line in reply.lines)
            outcome = gate.receipt(reply.events[-1]["error"]["mesh"]["receipt_id"]).value.outcome
            assert (outcome.finish, outcome.tokens_out, outcome.tokens_delivered) == ("engine-error", 1, 1)
            said: list[str] = []

            async def read() -> None:
                async for chunk in await client.chat.completions.create(**script(stream=True)):
                    said.append(chunk.choices[0].delta.content or "")

            with pytest.raises(openai.APIError, match="the child died"):
                await read()
            assert "".join(said) == "a"

    asyncio.run(main())


@pytest.mark.parametrize(
    "change", [outcome(tokens_out=7), outcome(delivered_fidelity=3), outcome(weights_digest=b"\x01" * 32)]
)
def test_engine_that_breaks_its_promise_gives_no_answer(tmp_path: Path, change: Callable[[Served], Served]) -> None:
    class Dishonest(ReferenceEngine):
        async def serve(self, request: ServeRequest, prompt: Any, sink: TokenSink) -> Served:
            return change(await super().serve(request, prompt, sink))

    async def main() -> None:
        async with house(tmp_path, Dishonest()) as gate:
            plain = await gate.post(ask())
            assert plain.code == (502, "engine-failed")
            assert gate.receipt(plain.headers["Mesh-Receipt"]).value.outcome.finish in ("engine-error", "refused")
            streamed = await gate.post(ask(stream=True))
            assert streamed.events[-1]["error"]["code"] == "engine-failed"
            assert "data: [DONE]" not in streamed.lines

    asyncio.run(main())


def limit_pages(gate: House, extra: int | None) -> None:
    """Let the ledger's file grow by `extra` pages at most; None: as it likes."""
    ledger: Ledger = gate.steward._ledger

    def work(transaction: Any) -> None:
        (pages,) = transaction.db.execute("PRAGMA page_count").fetchone()
        limit = 1_000_000 if extra is None else pages + extra
        transaction.db.execute(f"PRAGMA max_page_count = {limit}").fetchall()

    ledger._group.submit(work).result()


def test_ledger_that_cannot_be_written_serves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine = Scripted([b"x"])
        async with house(tmp_path, engine) as gate:
            assert (await gate.post(script())).status == 200
            limit_pages(gate, 0)
            for number in range(200):
                reply = await gate.post(script(str(number) * 50))
                if reply.status != 200:
                    break
            assert reply.code == (503, "ledger-unwritable")
            # where it lies is the operator's business
            assert str(tmp_path) not in reply.error["message"]
            assert str(tmp_path) in caplog.text
            assert "Retry-After" in reply.headers
            served = gate.steward.reader.count()
            limit_pages(gate, None)
            assert (await gate.post(script())).status == 200
            assert gate.steward.reader.count() >= served + 1

    asyncio.run(main())


def test_gateway_is_not_ready_from_an_intent_that_fails_until_a_small_write_goes_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"x"])) as gate:
            assert (await gate.post(script())).status == 200
            aside = (tmp_path / "ledger.sqlite").rename(tmp_path / "aside")
            # nobody has tried yet
            assert (await gate.get("/readyz")).status == 200
            assert (await gate.post(script())).code == (503, "ledger-unwritable")
            for _ in range(2):
                ready = await gate.get("/readyz")
                assert (ready.status, ready.json["reasons"]) == (503, ["the ledger cannot be written"])
            checkpoint = gate.steward.reader.last_checkpoint()
            aside.rename(tmp_path / "ledger.sqlite")
            assert (await gate.get("/readyz")).status == 200
            assert gate.steward.reader.last_checkpoint() != checkpoint
            assert (await gate.post(script())).status == 200

    asyncio.run(main())


def test_gateway_whose_disk_is_nearly_full_is_not_ready_and_serves_while_it_can(tmp_path: Path) -> None:
    async def main(status: int, min_free_bytes: int) -> None:
        async with house(tmp_path, Scripted([b"x"]), min_free_bytes=min_free_bytes) as gate:
            ready = await gate.get("/readyz")
            assert ready.status == status
            if status == 503:
                (reason,) = ready.json["reasons"]
                assert re.fullmatch(rf"the ledger's disk has \d+ bytes free, expected at least {1 << 60}", reason)
            assert (await gate.post(script())).status == 200

    asyncio.run(main(503, min_free_bytes=1 << 60))
    asyncio.run(main(200, min_free_bytes=0))


def test_seal_that_cannot_be_written_ends_the_stream_in_an_error_and_is_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        engine = Scripted([b"a", b"b"], hold_at=1)
        # keeping the long prompt makes the seal larger than what is left on the disk
        async with house(tmp_path, engine, keep_ns=10**18) as gate:
            async with gate.http.post(CHAT, json=script("long " * 20_000, stream=True)) as response:
                assert b"content" in await response.content.readuntil(b'"a"')
                limit_pages(gate, 4)
                engine.go.set()
                rest = (await response.content.read()).decode()
                serve = response.headers["Mesh-Serve"]
            assert '"code":"ledger-unwritable"' in rest
            assert str(tmp_path) not in rest
            assert str(tmp_path) in caplog.text
            assert "[DONE]" not in rest
            assert serve in rest
            ready = await gate.get("/readyz")
            assert (ready.status, ready.json["reasons"]) == (503, ["the ledger cannot be written"])
            limit_pages(gate, None)
            # being asked is enough: a balancer that stays away until then sends no serve to find it out
            assert (await gate.get("/readyz")).status == 200
            assert gate.receipt(serve).value.outcome.finish == "stop"
            assert (await gate.post(script())).status == 200

    asyncio.run(main())


def test_shutdown_lets_a_serve_end(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"all ", b"of it"], hold_at=1)
        async with house(tmp_path, engine, drain_s=60) as gate:
            reply = asyncio.ensure_future(gate.post(script(stream=True)))
            await engine.held.wait()
            stopping = asyncio.ensure_future(gate.gateway.stop())
            while not gate.gateway._completions.draining:
                await asyncio.sleep(0)
            assert (await gate.post(script())).code == (503, "engine-unavailable")
            assert (await gate.get("/readyz")).json["reasons"] == ["shutting down"]
            engine.go.set()
            assert (content(await reply), (await reply).lines[-1]) == ("all of it", "data: [DONE]")
            await stopping

    asyncio.run(main())


def test_shutdown_cuts_what_takes_too_long_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"never ", b"ends"], hold_at=1)
        async with house(tmp_path, engine, drain_s=0) as gate:
            streamed = asyncio.ensure_future(gate.post(script(stream=True)))
            plain = asyncio.ensure_future(gate.post(script()))
            while engine.holding < 2:
                await asyncio.sleep(0.001)
            await gate.gateway.stop()
            assert (await plain).code == (503, "engine-unavailable")
            assert content(await streamed) == "never "
            assert (await streamed).events[-1]["error"]["code"] == "engine-unavailable"
            assert "data: [DONE]" not in (await streamed).lines
            for receipt_id in (
                (await plain).headers["Mesh-Receipt"],
                (await streamed).events[-1]["error"]["mesh"]["receipt_id"],
            ):
                assert gate.receipt(receipt_id).value.outcome.finish == "cancelled"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", gate.port), timeout=5)

    asyncio.run(main())


class Hung(Scripted):
    """Stops in the middle and hears nothing until it is closed."""

    def __init__(self) -> None:
        super().__init__([b"never ", b"ends"], hold_at=1)
        self.closed = asyncio.Event()

    async def _held_up(self, sink: TokenSink) -> None:
        await self.closed.wait()
        raise EngineFailed("closed")

    async def close(self) -> None:
        self.closed.set()


def test_shutdown_closes_an_engine_that_does_not_stop_and_seals_its_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "CUT_S", 0.01)
    monkeypatch.setattr(completions, "_HUNG_S", 0.01)

    async def main() -> None:
        engine = Hung()
        async with house(tmp_path, engine, drain_s=0) as gate:
            plain = asyncio.ensure_future(gate.post(script()))
            await engine.held.wait()
            await gate.gateway.stop()
            await asyncio.wait({plain})
            outcome = (await gate.last_receipt(1)).value.outcome
            assert (outcome.finish, outcome.reason, outcome.tokens_out) == ("engine-error", "engine-failed", 1)

    asyncio.run(main())


def test_gateway_that_never_started_stops(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            idle = Gateway(gate.steward, [], gate.gateway._config)
            await idle.stop()
            await idle.stop()
            with pytest.raises(OSError, match="in use"):
                await idle.start("127.0.0.1", gate.port)

    asyncio.run(main())
