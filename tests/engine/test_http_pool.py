"""Connections that are kept, lost, refused and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mesh.engine.call_off import CallOff
from mesh.engine.http_pool import Left, Pool, _Places
from mesh.engine.http_response import AnswerReader
from mesh.errors import EngineFailed, EngineUnavailable

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pool_on(peer: Peer, **told: Any) -> AsyncIterator[Pool]:
    """A pool in front of a server that does what `peer` does with each connection."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = Pool(
        f"http://127.0.0.1:{port}/under", **{"name": "peer", "headers": {"A": "b"}, "limit": 2, "keep_s": 60} | told
    )
    try:
        yield pool
    finally:
        await pool.close()
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


class Kept(AnswerReader):
    def __init__(self, data: Callable[[bytes], None] | None) -> None:
        super().__init__()
        self.body = bytearray()
        self._data = data or self.body.extend

    def take(self, data: bytes) -> None:
        self._data(data)


async def ask(
    pool: Pool, body: bytes | None = None, *, data: Callable[[bytes], None] | None = None, **told: Any
) -> bytes:
    answer = Kept(data)
    await pool.ask("GET" if body is None else "POST", "/x", body, answer, **({"patience_s": 60.0} | told))
    return bytes(answer.body)


def polite(heads: list[bytes]) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ANSWER)

    return peer


def test_a_connection_is_used_again() -> None:
    heads: list[bytes] = []

    async def main() -> None:
        async with pool_on(polite(heads)) as pool:
            assert [await ask(pool) for _ in range(3)] == [b"ok"] * 3
            assert pool.opened == 1
            assert heads[0].startswith(b"GET /under/x HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nA: b\r\n" in heads[0]

    asyncio.run(main())


def test_a_connection_that_was_idle_for_too_long_is_not() -> None:
    async def main() -> None:
        async with pool_on(polite([]), keep_s=0) as pool:
            assert [await ask(pool) for _ in range(2)] == [b"ok"] * 2
            assert pool.opened == 2

    asyncio.run(main())


def test_what_may_be_sent_again_is_and_what_may_not_is_not() -> None:
    """The server closes a connection that was kept just when the next request is on its way."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await reader.readuntil(b"\r\n\r\n")

    async def main() -> None:
        async with pool_on(once) as pool:
            assert await ask(pool, again=True) == b"ok"
            assert await ask(pool, again=True) == b"ok"
            assert pool.opened == 2
            with pytest.raises(EngineFailed, match="peer: the connection broke: closed"):
                await ask(pool)

    asyncio.run(main())


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.write(ANSWER)
        await reader.read()

    async def main() -> None:
        async with pool_on(eager) as pool:
            with pytest.raises(EngineFailed, match="broke: more than one answer"):
                await ask(pool)

    asyncio.run(main())


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER[:-1])
    await reader.read()


@pytest.mark.parametrize("peer", [_silent, _drips])
@pytest.mark.parametrize("in_all", [False, True])
def test_silence_is_given_up(peer: Peer, in_all: bool) -> None:
    async def main() -> None:
        async with pool_on(peer) as pool:
            with pytest.raises(EngineFailed, match="nothing came for too long"):
                await ask(pool, patience_s=0.02, in_all=in_all)

    asyncio.run(main())


def test_leaving_and_cancelling_close_the_connection_and_give_the_place_back() -> None:
    gone = asyncio.Event()

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER[:-1])
        try:
            await reader.readexactly(1)
        except (ConnectionError, asyncio.IncompleteReadError):
            gone.set()

    async def main() -> None:
        async with pool_on(listening, limit=1) as pool:
            until, came = CallOff(), asyncio.Event()
            asking = asyncio.create_task(ask(pool, until=until, data=lambda data: came.set()))
            await came.wait()
            until.set()
            with pytest.raises(Left):
                await asking
            await gone.wait()

            gone.clear()
            came.clear()
            asking = asyncio.create_task(ask(pool, data=lambda data: came.set()))
            await came.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await gone.wait()

            def enough(data: bytes) -> None:
                raise Left

            with pytest.raises(Left):
                await ask(pool, data=enough)

    asyncio.run(main())


def test_an_answer_that_ends_with_its_connection_is_whole_unless_it_was_reset() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nok")

    async def main() -> None:
        async with pool_on(closes) as pool:
            assert [await ask(pool) for _ in range(2)] == [b"ok", b"ok"]
            assert pool.opened == 2

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid", "a..b"])
def test_a_server_that_cannot_be_reached_is_told(host: str) -> None:
    async def main() -> None:
        pool = Pool(f"http://{host}", name="peer", headers={}, limit=1, keep_s=1)
        try:
            for _ in range(2):
                with pytest.raises(EngineUnavailable, match="peer: cannot be reached: "):
                    await ask(pool)
        finally:
            await pool.close()
        with pytest.raises(EngineUnavailable, match="closed"):
            await ask(pool)

    asyncio.run(main())


def test_closing_ends_what_is_asked() -> None:
    async def main() -> None:
        came = asyncio.Event()
        async with pool_on(_drips) as pool:
            asking = asyncio.create_task(ask(pool, data=lambda data: came.set()))
            await came.wait()
            await pool.close()
            with pytest.raises(EngineFailed, match="the connection broke"):
                await asking

    asyncio.run(main())


def test_a_kept_connection_that_is_closing_is_not_asked() -> None:
    async def main() -> None:
        async with pool_on(polite([])) as pool:
            assert await ask(pool) == b"ok"
            pool._idle[0].abort()
            assert await ask(pool) == b"ok"
            assert pool.opened == 2

    asyncio.run(main())


def test_whoever_left_before_he_asked_asks_nothing() -> None:
    heads: list[bytes] = []

    async def main() -> None:
        async with pool_on(polite(heads), limit=1) as pool:
            until = CallOff()
            until.set()
            with pytest.raises(Left):
                await ask(pool, until=until)
            assert await ask(pool) == b"ok"
            assert (len(heads), until.heard) == (1, None)

    asyncio.run(main())


def test_places_are_handed_on_in_the_order_of_asking_past_those_who_have_gone() -> None:
    async def main() -> None:
        places = _Places(1)
        places.free -= 1
        gone, late, third, fourth = (asyncio.create_task(places.wait()) for _ in range(4))
        await asyncio.sleep(0)
        gone.cancel()
        places.give_back()
        late.cancel()  # it is his by now, and he does not know
        for task in (gone, late):
            with pytest.raises(asyncio.CancelledError):
                await task
        await third
        assert (places.free, fourth.done()) == (0, False)
        places.give_back()
        await fourth
        places.give_back()
        assert places.free == 1

    asyncio.run(main())
