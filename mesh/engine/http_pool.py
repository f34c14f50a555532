"""A few connections to one HTTP/1.1 server, kept open between requests.

A serve costs three requests, and a stream an event for each token. What a library for any use does for each of these
costs more than all that the mesh does itself, so this one does the least: what comes is handed on in the turn of the
loop that read it, without a task or a queue in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from mesh.engine.alarm import Alarm
from mesh.engine.http_response import AnswerReader, MalformedAnswer

CONNECT_S: Final = 5


class Unreachable(Exception):
    """No connection could be made; the message says why."""


class Broken(Exception):
    """The connection ended before the answer did, or what came on it was no HTTP."""


class Silent(Exception):
    """Nothing came for too long."""


class Left(Exception):
    """Whoever asked wants no more; to be raised by what an answer's body is handed to, too."""


class Pool:
    """At most `limit` connections to the server at `url`, each taken again within `keep_s` seconds of its last answer.
    `headers` go with every request. `opened` counts the connections made so far."""

    def __init__(self, url: str, *, headers: Mapping[str, str], limit: int, keep_s: float) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._root = parts.path
        lines = {"Host": parts.netloc, "Accept-Encoding": "identity", "User-Agent": "mesh", **headers}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._places = asyncio.Semaphore(limit)
        self._keep_s = keep_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._closed = False
        self.opened = 0

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        head: Callable[[int], None],
        data: Callable[[bytes], None],
        patience_s: float,
        in_all: bool,
        again: bool,
        until: asyncio.Event | None = None,
    ) -> None:
        """One request, to the end of its answer: `head` gets the status, `data` the body as it comes; what they raise
        ends it. `patience_s` is for the whole answer, or where not `in_all` for each time without any of it. `again`:
        it may be sent again where a connection that was kept broke before any of an answer. The connection is closed,
        which is how the server learns that nobody wants more, where `until` is set, in a cancellation, and in any
        fault. Raises Unreachable, Broken, Silent, Left."""
        async with self._places:
            request = self._request(method, path, body)
            while True:
                connection, kept = await self._connection()
                reader = AnswerReader(head, data)
                try:
                    await connection.exchange(request, reader, patience_s, in_all=in_all, until=until)
                except Broken:
                    if kept and again and reader.status is None:
                        continue
                    raise
                if reader.reusable and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.abort()
                return

    async def close(self) -> None:
        self._closed = True
        ending = [connection.ended for connection in self._open]
        for connection in list(self._open):
            connection.abort()
        if ending:
            await asyncio.wait(ending)

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        told = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{method} {self._root}{path} HTTP/1.1\r\n{self._lines}{told}\r\n".encode("latin-1") + (body or b"")

    async def _connection(self) -> tuple[_Connection, bool]:
        """One that is free, and whether it was kept from an earlier request."""
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if loop.time() - connection.last_s < self._keep_s:
                return connection, True
            connection.abort()
        if self._closed:
            raise Unreachable("closed")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._lost), self._host, self._port, ssl=self._secure or None
                )
        except TimeoutError:
            raise Unreachable("timed out") from None
        except (OSError, ValueError) as e:  # ValueError: a host that is no name
            raise Unreachable((getattr(e, "strerror", None) or str(e) or type(e).__name__).lower()) from None
        self.opened += 1
        self._open.add(connection)
        if self._closed:
            connection.abort()
        return connection, False

    def _lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection, with at most one request on it. `last_s` is when the last of an answer came, in the loop's time;
    `ended` is done once it is closed."""

    def __init__(self, lost: Callable[[_Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._reader: AnswerReader | None = None
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._patience_s: float | None = None  # with each time without anything
        self._alarm = Alarm(self._look)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.last_s = self._loop.time()

    async def exchange(
        self, request: bytes, reader: AnswerReader, patience_s: float, *, in_all: bool, until: asyncio.Event | None
    ) -> None:
        """Returns once `reader` has a whole answer; the connection is closed where it raises."""
        if self.ended.done():
            raise Broken("closed")
        done: asyncio.Future[None] = self._loop.create_future()
        self._reader, self._done, self.last_s = reader, done, self._loop.time()
        self._patience_s = None if in_all else patience_s
        self._alarm.set(self.last_s + patience_s)
        leaving = None if until is None else _when_set(until, lambda: _fail(done, Left()))
        try:
            self._transport.write(request)
            await done
        except BaseException:
            self.abort()
            raise
        finally:
            self._reader = self._done = None
            if leaving is not None:
                leaving.close()
            if done.done() and not done.cancelled():
                done.exception()  # it may have failed just when its asker was cancelled

    def abort(self) -> None:
        self._transport.abort()

    def _look(self) -> None:
        if self._done is None:
            return
        due_s = self._loop.time() if self._patience_s is None else self.last_s + self._patience_s
        if due_s > self._loop.time():  # moved on here, and not each time that something comes
            self._alarm.set(due_s)
        else:
            _fail(self._done, Silent())

    # --- asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops than asyncio's have classes of their own

    def data_received(self, data: bytes) -> None:
        reader, done = self._reader, self._done
        if reader is None or done is None or done.done():
            self.abort()  # an answer that nobody asked for
            return
        self.last_s = self._loop.time()
        try:
            reader.feed(data)
        except MalformedAnswer as e:
            _fail(done, Broken(str(e)))
        except Exception as e:  # noqa: BLE001 - it is the asker's own
            _fail(done, e)
        else:
            if reader.whole:
                done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._alarm.close()
        self._lost(self)
        self.ended.set_result(None)
        if self._reader is not None and self._done is not None and not self._done.done():
            if exc is None and self._reader.end():
                self._done.set_result(None)
            else:
                _fail(self._done, Broken("closed" if exc is None else type(exc).__name__))


def _when_set(event: asyncio.Event, then: Callable[[], None]) -> Coroutine[Any, Any, Any]:
    """Have `then` called once `event` is set, unless what this returns is closed before. What a task that waits would
    do, at a tenth of its cost: the wait's first step gives the future that it would sleep on."""
    wait = event.wait()
    try:
        waiter: asyncio.Future[Any] = wait.send(None)
    except StopIteration:  # it is set
        asyncio.get_running_loop().call_soon(then)
    else:
        waiter.add_done_callback(lambda _: then())
    return wait


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
