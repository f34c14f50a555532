"""What a gateway takes on: bounded, fair, within a time, and said honestly where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.gateway import choices
from mesh.schema.request import ServeRequest
from tests.gateway.serving import (
    CHAT,
    Ahead,
    House,
    Reply,
    Scripted,
    ask,
    content,
    house,
    raw_request,
    run_ahead,
    script,
)

KEYS = ("the key of one", "the key of another")
DIGESTS = ["b3:" + blake3(key.encode()).hexdigest() for key in KEYS]


def bearer(number: int) -> str:
    return f"Bearer {KEYS[number]}"


async def waiting(gate: House, count: int) -> None:
    while gate.gateway.backends.all[0].room.waiting != count:
        await asyncio.sleep(0.001)


def test_callers_take_turns_and_one_cannot_fill_the_queue_against_another(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine, keys=DIGESTS, queue=3) as gate:
            greedy = [asyncio.ensure_future(gate.post(script(), Authorization=bearer(0)))]
            await engine.held.wait()
            greedy += [asyncio.ensure_future(gate.post(script(), Authorization=bearer(0))) for _ in range(3)]
            await waiting(gate, 3)
            assert (await gate.post(script(), Authorization=bearer(0))).code == (429, "overloaded")
            modest = asyncio.ensure_future(gate.post(script(), Authorization=bearer(1)))
            done, _ = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().code for task in done] == [(429, "overloaded")]
            engine.go.set()
            assert (await modest).status == 200
            statuses = [(await task).status for task in greedy]
            assert sorted(statuses) == [200, 200, 200, 429]
            assert gate.steward.reader.count() == 4

    asyncio.run(main())


def test_deadline_in_the_queue_is_a_504_without_a_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, slots=1)
        async with house(tmp_path, engine) as gate:
            first = asyncio.ensure_future(gate.post(script()))
            await engine.held.wait()
            late = await gate.post(script(mesh={"deadline_s": 1}))
            assert late.code == (504, "deadline_exceeded")
            assert "Mesh-Serve" not in late.headers
            engine.go.set()
            assert (await first).status == 200
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


def test_deadline_in_the_serve_cuts_it_and_the_receipt_says_so(tmp_path: Path) -> None:
    async def main(loop: Ahead) -> None:
        engine = Scripted([b"never ", b"ends"], hold_at=1)
        async with house(tmp_path, engine, deadline_s=60) as gate:
            gate.gateway._completions._clock = loop.time
            # a client may ask for less than the operator allows, not for more
            asking = asyncio.gather(gate.post(script(mesh={"deadline_s": 600})), gate.post(script(stream=True)))
            while engine.holding < 2:
                await asyncio.sleep(0.001)
            loop.ahead += 60
            plain, streamed = await asking
            assert plain.code == (504, "deadline_exceeded")
            assert content(streamed) == "never "
            error = streamed.events[-1]["error"]
            assert error["code"] == "deadline_exceeded"
            assert "data: [DONE]" not in streamed.lines
            for receipt_id in (plain.headers["Mesh-Receipt"], error["mesh"]["receipt_id"]):
                outcome = gate.receipt(receipt_id).value.outcome
                assert (outcome.finish, outcome.reason, outcome.tokens_out) == ("cancelled", "deadline", 1)

    run_ahead(main)


class Deaf(ReferenceEngine):
    """Does not hear that nobody wants more, until it is `freed`."""

    def __init__(self) -> None:
        super().__init__()
        self.freed = asyncio.Event()
        self.asked = 0

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self.asked += 1
        await self.freed.wait()
        return await super().serve(request, prompt, sink)


def test_engine_that_does_not_stop_is_not_waited_for_and_its_serve_is_sealed_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "CUT_S", 0.05)

    async def main(loop: Ahead) -> None:
        engine = Deaf()
        async with house(tmp_path, engine, deadline_s=60, keep_alive_s=1) as gate:
            gate.gateway._completions._clock = loop.time
            asking = asyncio.ensure_future(gate.post(ask()))
            opening = asyncio.ensure_future(gate.http.post(CHAT, json=ask(stream=True)))
            while engine.asked < 2:
                await asyncio.sleep(0.001)
            async with await opening as opened:  # its first keep-alive went out
                loop.ahead += 60
                streamed = Reply(opened.status, opened.headers.copy(), await opened.read())
            plain = await asking
            assert plain.code == (504, "deadline_exceeded")
            assert streamed.status == 200
            assert streamed.events[-1]["error"]["code"] == "deadline_exceeded"
            assert "data: [DONE]" not in streamed.lines
            assert gate.steward.reader.count() == 0
            serve = plain.headers["Mesh-Serve"]
            told = await gate.get(f"/mesh/v1/receipts/{serve}")
            assert told.code == (404, "not_sealed_yet")
            engine.freed.set()
            await gate.last_receipt(2)
            assert gate.receipt(serve).value.outcome.reason == "deadline"

    run_ahead(main)


def test_prompt_and_answer_have_limits_of_the_operator(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, max_prompt_tokens=50, max_output_tokens=9) as gate:
            assert (await gate.post(ask("x" * 10, max_tokens=9))).status == 200
            long = await gate.post(ask("x" * 50))
            assert long.code == (400, "context_length_exceeded")
            assert "takes at most 50" in long.error["message"]
            more = await gate.post(ask(max_tokens=10))
            assert (more.code, more.error["param"]) == ((400, "invalid_value"), "max_tokens")
            silent = await gate.post({name: value for name, value in ask("x").items() if name != "max_tokens"})
            assert silent.json["usage"]["completion_tokens"] == 9
            assert gate.steward.reader.count() == 2

    asyncio.run(main())


def test_bodies_in_memory_are_bounded_together(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"], hold_at=0, context_tokens=10**6)
        async with house(tmp_path, engine, max_body_bytes=200_000, body_memory_bytes=250_000) as gate:
            first = asyncio.ensure_future(gate.post(script("y" * 150_000)))
            await engine.held.wait()
            refused = await gate.post(script("y" * 150_000))
            assert (refused.code, refused.headers["Retry-After"]) == ((429, "overloaded"), "1")
            large = await gate.post(script("y" * 250_000))
            assert large.code == (413, "body_too_large")
            small = asyncio.ensure_future(gate.post(script("y")))
            while engine.holding < 2:
                await asyncio.sleep(0.001)
            engine.go.set()
            assert [(await each).status for each in (first, small)] == [200, 200]
            assert (await gate.post(script("y" * 150_000))).status == 200
            assert gate.gateway._completions._intake.held_bytes == 0

    asyncio.run(main())


def test_connections_beyond_the_limit_are_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, max_connections=3) as gate:
            assert (await gate.post(ask())).status == 200  # whose connection stays
            held = [await asyncio.open_connection("127.0.0.1", gate.port) for _ in range(2)]
            reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
            writer.close()
            assert (await gate.post(ask())).status == 200
            for _, one in held:
                one.close()
                await one.wait_closed()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: local"], ids=["nothing", "half"])
def test_connection_without_a_whole_head_is_closed(tmp_path: Path, said: bytes) -> None:
    async def main() -> None:
        async with house(tmp_path, idle_timeout_s=1) as gate:
            fresh = await asyncio.open_connection("127.0.0.1", gate.port)
            used = await asyncio.open_connection("127.0.0.1", gate.port)
            used[1].write(raw_request(ask()))
            await used[0].readuntil(b"\r\n\r\n")
            for _, writer in (fresh, used):
                writer.write(said)
            for reader, writer in (fresh, used):
                with contextlib.suppress(ConnectionResetError):  # a server that was quicker than what was said
                    await reader.read()  # to the end that the server makes
                writer.close()

    asyncio.run(main())


def test_head_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            heads: list[dict[str, str]] = [{"X-Long": "x" * 9000}, {f"X-{n}": "y" for n in range(100)}]
            for head in heads:
                async with gate.http.post(CHAT, json=ask(), headers=head) as response:
                    assert response.status in (400, 431)
            assert (await gate.post(ask())).status == 200
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


def test_shutdown_sends_away_who_waits_and_lets_the_running_end(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"all ", b"of it"], hold_at=1, slots=1)
        async with house(tmp_path, engine, drain_s=60) as gate:
            first = asyncio.ensure_future(gate.post(script()))
            await engine.held.wait()
            queued = [asyncio.ensure_future(gate.post(script(stream=n == 1))) for n in range(2)]
            await waiting(gate, 2)
            stopping = asyncio.ensure_future(gate.gateway.stop())
            for reply in queued:
                assert (await reply).code == (503, "engine-unavailable")
                assert "Retry-After" in (await reply).headers
            engine.go.set()
            assert content(await first) == "all of it"
            await stopping
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


def test_receipt_says_why_a_serve_was_cut(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"word "] * 9, hold_at=0)
        async with house(tmp_path, engine, drain_s=0) as gate:
            _, writer = await asyncio.open_connection("127.0.0.1", gate.port)
            writer.write(raw_request(script(stream=True)))
            await engine.held.wait()
            writer.transport.abort()
            gone: Any = (await gate.last_receipt(1)).value.outcome
            assert (gone.finish, gone.reason, gone.tokens_out) == ("cancelled", "client-gone", 0)
            cut = asyncio.ensure_future(gate.post(script()))
            while engine.holding < 2:
                await asyncio.sleep(0.001)
            await gate.gateway.stop()
            assert gate.receipt((await cut).headers["Mesh-Receipt"]).value.outcome.reason == "shutdown"

    asyncio.run(main())
