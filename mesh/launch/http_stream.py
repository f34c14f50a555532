"""Requests to an engine's port whose answers are timed: plain ones, and completions that come as a stream.

Small on purpose: a connection for each request, no redirects, no compression; what a server says beyond that is an
error of that request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from mesh.launch.looking import Answer

MAX_ANSWER_BYTES = 64 << 20
_HEAD_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_SHOWN = 200

Open = Callable[[], Awaitable[tuple[Any, Any]]]
"""Opens a byte stream to the engine: a reader and a writer. Raises OSError, LaunchError."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """One completion. Times are nanoseconds since it was sent; None where it did not come so far, or where the server
    did not count. `events` are those with text, `pieces` the reads that brought one or more of them. `failed` says why
    there is no whole answer."""

    total_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    events: int = 0
    pieces: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """`clock` counts nanoseconds, from wherever it likes."""

    open: Open
    host: str
    clock: Callable[[], int]

    async def request(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> Answer:
        """Raises OSError for no answer, TimeoutError, LaunchError."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await self.open()
            try:
                writer.write(_request(self.host, method, path, body))
                status, chunks = await _answer(reader)
                data = bytearray()
                async for chunk in chunks:
                    data += chunk
                    if len(data) > MAX_ANSWER_BYTES:
                        raise OSError(f"{path}: an answer over {MAX_ANSWER_BYTES} bytes")
            finally:
                await _close(writer)
        return Answer(status, bytes(data))

    async def stream(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Streamed:
        """A streamed completion, to its end or to its failure, which is told and not raised. Raises LaunchError where
        the way to the engine is gone."""
        began = self.clock()
        seen = _Seen()
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self.open()
                timed = _Timed(reader, self.clock)
                try:
                    writer.write(_request(self.host, "POST", path, body))
                    status, chunks = await _answer(timed)
                    async with aclosing(chunks):
                        await (_events(chunks, seen, timed, began) if status == 200 else _refused(status, chunks, seen))
                finally:
                    await _close(writer)
        except TimeoutError:
            seen.failed = f"no end within {timeout_s:g} s"
        except ConnectionRefusedError:
            seen.failed = "nobody listens"
        except OSError as e:
            seen.failed = (str(e) or type(e).__name__)[:_SHOWN]
        if seen.failed is None and not seen.done:
            seen.failed = "the stream broke off before its end"
        if seen.failed is None and seen.first_ns is None:
            seen.failed = "the stream ended without a token"
        return Streamed(
            self.clock() - began, seen.first_ns, seen.last_ns, seen.events, seen.pieces, seen.prompt_tokens,
            seen.output_tokens, seen.finish, seen.failed,
        )  # fmt: skip


async def _events(chunks: AsyncGenerator[bytes, None], seen: _Seen, timed: _Timed, began: int) -> None:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_ANSWER_BYTES:
            raise OSError(f"a line of the stream over {MAX_ANSWER_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                seen.take(line[5:].strip(), timed.read_ns - began)
            if seen.done or seen.failed is not None:
                return


@dataclass(slots=True)
class _Timed:
    """A reader that knows when it last read: what came at once came at one time, however long it takes to go through
    it."""

    reader: Any
    clock: Callable[[], int]
    read_ns: int = 0

    async def read(self, limit: int) -> bytes:
        data: bytes = await self.reader.read(limit)
        self.read_ns = self.clock()
        return data


@dataclass(slots=True)
class _Seen:
    first_ns: int | None = None
    last_ns: int | None = None
    events: int = 0
    pieces: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    failed: str | None = None
    done: bool = False

    def take(self, data: bytes, now: int) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            told = json.loads(data)
        except (ValueError, RecursionError):
            self.failed = f"an event that is no json: {data[:60]!r}"
            return
        if not isinstance(told, dict):
            self.failed = "an event that is no object"
            return
        if "error" in told:
            self.failed = f"the engine failed: {_message(told)}"
            return
        usage = told.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.output_tokens = _count(usage.get("completion_tokens"))
        choices = told.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
                self.first_ns = now if self.first_ns is None else self.first_ns
                self.events += 1
                self.pieces += now != self.last_ns
                self.last_ns = now
            if choice.get("finish_reason"):
                self.finish = str(choice["finish_reason"])[:40]


async def _close(writer: Any) -> None:
    """At once, whatever is still to be sent: nobody waits for it."""
    transport = getattr(writer, "transport", None)  # a channel of an SSH connection has none
    if transport is None:
        writer.close()
    else:
        transport.abort()
        await asyncio.sleep(0)  # in which it lets go of its socket


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _request(host: str, method: str, path: str, body: Any) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json, text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + payload


async def _answer(reader: Any) -> tuple[int, AsyncGenerator[bytes, None]]:
    """The status, and the body as it comes."""
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = await reader.read(_READ_BYTES)
        head += chunk
        if not chunk:
            raise OSError("the connection ended without an answer")
        if len(head) > _HEAD_BYTES + _READ_BYTES:
            raise OSError(f"an answer whose head is over {_HEAD_BYTES} bytes")
    first, _, rest = head.partition(b"\r\n\r\n")
    lines = first.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if not lines[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise OSError("what answers is no HTTP server")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return int(words[1]), _chunked(reader, rest)
    length = fields.get(b"content-length", b"")
    return int(words[1]), _plain(reader, rest, int(length) if length.isdigit() else None)


async def _plain(reader: Any, rest: bytes, length: int | None) -> AsyncGenerator[bytes, None]:
    got = 0
    while True:
        if rest:
            got += len(rest)
            yield rest
        if length is not None and got >= length:
            return
        rest = await reader.read(_READ_BYTES)
        if not rest:
            if length is not None:
                raise OSError(f"{got} bytes of an answer of {length}")
            return


async def _chunked(reader: Any, rest: bytes) -> AsyncGenerator[bytes, None]:
    async def more() -> bytes:
        chunk: bytes = await reader.read(_READ_BYTES)
        if not chunk:
            raise OSError("an answer that broke off in a chunk")
        return chunk

    while True:
        while b"\r\n" not in rest:
            rest += await more()
        size, _, rest = rest.partition(b"\r\n")
        try:
            left = int(size.partition(b";")[0], 16)
        except ValueError:
            raise OSError(f"a chunk of size {size[:20]!r}") from None
        if left == 0:
            return
        while left:
            if not rest:
                rest = await more()
            piece, rest = rest[:left], rest[left:]
            left -= len(piece)
            yield piece
        while len(rest) < 2:
            rest += await more()
        rest = rest[2:]


async def _refused(status: int, chunks: AsyncGenerator[bytes, None], seen: _Seen) -> None:
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > _READ_BYTES:
            break
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    message = _message(told) if isinstance(told, dict) else ""
    seen.failed = f"status {status}" + (f": {message}" if message else "")


def _message(told: Mapping[str, Any]) -> str:
    error = told.get("error", told)
    message = error.get("message", "") if isinstance(error, dict) else error
    return " ".join(str(message).split())[:_SHOWN]
