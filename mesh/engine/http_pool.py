"""A few connections to one HTTP/1.1 server, kept open between requests.

A serve costs three requests, and a stream an event for each token. What a library for any use does for each of these
costs more than all that the mesh does itself, so this one does the least: what comes is handed on in the turn of the
loop that read it, without a task or a queue in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from mesh.engine.alarm import Alarm
from mesh.engine.call_off import CallOff
from mesh.engine.http_response import AnswerReader, MalformedAnswer
from mesh.errors import EngineFailed, EngineUnavailable

CONNECT_S: Final = 5


class Left(Exception):
    """Whoever asked wants no more; to be raised by what takes an answer's body, too."""


class _Broken(Exception):
    """The connection ended before the answer did, or what came on it was no HTTP."""


class _Silent(Exception):
    """Nothing came for too long."""


class Pool:
    """At most `limit` connections to the server at `url`, which errors call `name`, each taken again within `keep_s`
    seconds of its last answer. `headers` go with every request. `opened` counts the connections made so far."""

    def __init__(self, url: str, *, name: str, headers: Mapping[str, str], limit: int, keep_s: float) -> None:
        parts = urlsplit(url)
        self._name = name
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._root = parts.path
        lines = {"Host": parts.netloc, "Accept-Encoding": "identity", "User-Agent": "mesh", **headers}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._heads: dict[tuple[str, str, bool], bytes] = {}
        self._places = _Places(limit)
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
        answer: AnswerReader,
        *,
        patience_s: float,
        in_all: bool = False,
        again: bool = False,
        until: CallOff | None = None,
    ) -> bool:
        """One request, to the end of its `answer`, which raises Left or an error of its own where it wants no more.
        Returns whether it came on a connection that was kept. `patience_s` is for the whole answer, or where not
        `in_all` for each time without any of it. `again`: it may be sent again where a connection that was kept broke
        before any of an answer. The connection is closed, which is how the server learns that nobody wants more, where
        `until` is set, in a cancellation, and in any fault. Raises EngineUnavailable where no connection could be made,
        EngineFailed where it broke or was silent for too long, and Left."""
        request = self._request(method, path, body)
        if self._places.free:
            self._places.free -= 1
        else:
            await self._places.wait()
        try:
            while True:
                connection = self._kept()
                kept = connection is not None
                if connection is None:
                    connection = await self._connect()
                try:
                    await connection.begin(request, answer, patience_s, in_all=in_all, until=until)
                except BaseException as e:
                    connection.give_up()
                    if type(e) is _Broken and kept and again and not answer.status:
                        answer.forget()
                        continue
                    raise
                finally:
                    if until is not None:
                        until.heard = None
                if answer.reusable and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.abort()
                return kept
        except _Silent:
            raise EngineFailed(f"{self._name}: nothing came for too long") from None
        except _Broken as e:
            raise EngineFailed(f"{self._name}: the connection broke: {e}") from None
        finally:
            self._places.give_back()

    async def close(self) -> None:
        self._closed = True
        ending = [connection.ended for connection in self._open]
        for connection in list(self._open):
            connection.abort()
        if ending:
            await asyncio.wait(ending)

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            head = self._heads[method, path, body is None]
        except KeyError:  # there are few paths
            told = "\r\n" if body is None else "Content-Type: application/json\r\nContent-Length: "
            head = f"{method} {self._root}{path} HTTP/1.1\r\n{self._lines}{told}".encode("latin-1")
            self._heads[method, path, body is None] = head
        return head if body is None else b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _kept(self) -> _Connection | None:
        """One that is free and was kept from an earlier request."""
        now_s = asyncio.get_running_loop().time() if self._idle else 0
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue  # nothing was sent on it, so nothing is lost
            if now_s - connection.last_s < self._keep_s:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        if self._closed:
            raise self._unreachable("closed")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._lost), self._host, self._port, ssl=self._secure or None
                )
        except TimeoutError:
            raise self._unreachable("timed out") from None
        except (OSError, ValueError) as e:  # ValueError: a host that is no name
            why = (getattr(e, "strerror", None) or str(e) or type(e).__name__).lower()
            raise self._unreachable(why) from None
        self.opened += 1
        self._open.add(connection)
        if self._closed:
            connection.abort()
        return connection

    def _unreachable(self, why: str) -> EngineUnavailable:
        return EngineUnavailable(f"{self._name}: cannot be reached: {why}")

    def _lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Places:
    """So many may be in use at once. Whoever finds one `free` takes it by counting it off; who does not waits, and is
    handed the next that is given back, in the order of asking. For one thread."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.give_back()  # it was handed over just when its asker was cancelled
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def give_back(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


class _Connection(asyncio.Protocol):
    """One connection, with at most one request on it. `last_s` is when the last of an answer came, in the loop's time;
    `ended` is done once it is closed."""

    def __init__(self, lost: Callable[[_Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._answer: AnswerReader | None = None
        self._done: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport
        self._patience_s: float | None = None  # with each time without anything
        self._alarm = Alarm(self._look)
        self.last_s = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def begin(
        self, request: bytes, answer: AnswerReader, patience_s: float, *, in_all: bool, until: CallOff | None
    ) -> asyncio.Future[None]:
        """Done once `answer` is whole, or with why it will not be; then, and where nobody waits any longer, `give_up`
        must follow."""
        self._done = done = self._loop.create_future()
        self._answer, self.last_s = answer, self._loop.time()
        if self.transport.is_closing():
            done.set_exception(_Broken("closed"))
        elif until is not None and until.is_set():
            done.set_exception(Left())
        else:
            if until is not None:
                until.heard = self._leave
            self._patience_s = None if in_all else patience_s
            self._alarm.set(self.last_s + patience_s)
            self.transport.write(request)
        return done

    def abort(self) -> None:
        self.transport.abort()

    def give_up(self) -> None:
        """`abort` in the midst of a request."""
        self.abort()
        done, self._answer, self._done = self._done, None, None
        if done is not None and done.done() and not done.cancelled():
            done.exception()  # it may have failed just when its asker was cancelled

    def _leave(self) -> None:
        if self._done is not None:  # what is being taken just now comes first
            self._loop.call_soon(_fail, self._done, Left())

    def _look(self) -> None:
        if self._done is None:
            return
        due_s = self._loop.time() if self._patience_s is None else self.last_s + self._patience_s
        if due_s > self._loop.time():  # moved on here, and not each time that something comes
            self._alarm.set(due_s)
        else:
            _fail(self._done, _Silent())

    # --- asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # other loops than asyncio's have classes of their own

    def data_received(self, data: bytes) -> None:
        answer, done = self._answer, self._done
        if answer is None or done is None or done.done():
            self.abort()  # an answer that nobody asked for
            return
        self.last_s = self._loop.time()
        try:
            answer.feed(data)
        except MalformedAnswer as e:
            _fail(done, _Broken(str(e)))
        except Exception as e:  # noqa: BLE001 - it is the asker's own
            _fail(done, e)
        else:
            if answer.whole:
                self._answer = self._done = None
                done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._alarm.close()
        self._lost(self)
        self.ended.set_result(None)
        if self._answer is not None and self._done is not None and not self._done.done():
            if exc is None and self._answer.end():
                self._done.set_result(None)
            else:
                _fail(self._done, _Broken("closed" if exc is None else type(exc).__name__))


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
