"""HTTP/1.1 answers out of bytes that are cut anywhere. Pure: no socket, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 1 << 16
_MAX_LINE_BYTES: Final = 4096  # of a chunk's size, with what may follow it
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?\Z")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*\Z")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\Z")


class MalformedAnswer(ValueError):
    """What came is no HTTP/1.1."""


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    reusable: bool


# A server that has much to do says the same head many times in a second.
@lru_cache(maxsize=64)
def _parse_head(head: bytes) -> _Head:
    """Of all up to the blank line."""
    first, *lines = head.split(b"\r\n")
    told = _STATUS.match(first)
    if told is None:
        raise MalformedAnswer("no http/1.1 answer")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.match(line)
        if header is None:
            raise MalformedAnswer("a malformed header")
        name = header[1].decode().lower()
        if name in ("content-length", "transfer-encoding") and name in headers:
            raise MalformedAnswer(f"two headers {name}")
        headers[name] = header[2].decode("latin-1")
    wish = headers.get("connection", "").lower()
    return _Head(int(told[2]), headers, "close" not in wish and (told[1] == b"1" or "keep-alive" in wish))


# Chunks of events are of a few lengths.
@lru_cache(maxsize=256)
def _size_of(line: bytes) -> int:
    size = _SIZE.match(line)
    if size is None:
        raise MalformedAnswer("a chunk without a size")
    return int(size[1], 16)


class AnswerReader:
    """One answer. `body` gets its bytes as they come, without what they are wrapped in; `head` is told once `status`
    is known, before any of them. `whole` once it is over; `reusable` then says whether another may follow it."""

    def __init__(self, head: Callable[[int], None], body: Callable[[bytes], None]) -> None:
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.whole = False
        self.reusable = False
        self._head, self._body = head, body
        self._rest = b""
        # a method of the class: one of its own would hold it in a circle, of which an answer leaves none
        self._step: Callable[[AnswerReader, bytes], bytes] = AnswerReader._read_head
        self._left = 0  # bytes of the body, or of its chunk
        self._closes = False  # the line that ends a chunk is to come

    def feed(self, data: bytes) -> None:
        """Raises MalformedAnswer, also for what comes after the end, and what `head` and `body` raise."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        while data:
            if self.whole:
                raise MalformedAnswer("more than one answer")
            data = self._step(self, data)

    def end(self) -> bool:
        """The connection is closed. Whether that is how the answer ends."""
        if self._step is AnswerReader._read_to_the_end:
            self.whole = True
        return self.whole

    def _read_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(data) >= MAX_HEAD_BYTES:
                raise MalformedAnswer(f"a head of over {MAX_HEAD_BYTES} bytes")
            return self._wait(data)
        status, headers, reusable = _parse_head(data[:end])
        data = data[end + 4 :]
        if status < 200:  # one that says that the answer is still to come
            if status == 101:
                raise MalformedAnswer("another protocol")
            return data
        self.status, self.headers, self.reusable = status, headers, reusable
        self._choose_body(status)
        self._head(status)
        return data

    def _choose_body(self, status: int) -> None:
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise MalformedAnswer("an encoded body, which nobody asked for")
        if status in (204, 304):
            self.whole = True
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise MalformedAnswer("a body in a transfer-encoding that is not known")
            self._step = AnswerReader._read_chunks
        elif length is not None:
            if not re.fullmatch(r"[0-9]{1,18}", length):
                raise MalformedAnswer("a content-length that is no number")
            self._left = int(length)
            self.whole = self._left == 0
            self._step = AnswerReader._read_counted
        else:
            self.reusable = False
            self._step = AnswerReader._read_to_the_end

    def _read_counted(self, data: bytes) -> bytes:
        part, rest = data[: self._left], data[self._left :]
        self._left -= len(part)
        self.whole = self._left == 0
        self._body(part)
        return rest

    def _read_to_the_end(self, data: bytes) -> bytes:
        self._body(data)
        return b""

    def _read_chunks(self, data: bytes) -> bytes:
        """As many as are there, handed on together: a stream's events come in chunks of their own."""
        at, parts = 0, []
        try:
            while True:
                if self._left:
                    part = data[at : at + self._left]
                    parts.append(part)
                    at += len(part)
                    self._left -= len(part)
                    if self._left:
                        return b""
                    self._closes = True
                if self._closes:
                    if len(data) - at < 2:
                        return self._wait(data[at:])
                    if data[at : at + 2] != b"\r\n":
                        raise MalformedAnswer("a chunk that is longer than it says")
                    at, self._closes = at + 2, False
                end = data.find(b"\r\n", at, at + _MAX_LINE_BYTES)
                if end < 0:
                    if len(data) - at >= _MAX_LINE_BYTES:
                        raise MalformedAnswer("a chunk without a size")
                    return self._wait(data[at:])
                at, self._left = end + 2, _size_of(data[at:end])
                if not self._left:
                    self._step = AnswerReader._read_trailer
                    return data[at:]
        finally:
            if parts:
                self._body(parts[0] if len(parts) == 1 else b"".join(parts))

    def _wait(self, rest: bytes) -> bytes:
        """More has to come before `rest` means anything."""
        self._rest = rest
        return b""

    def _read_trailer(self, data: bytes) -> bytes:
        end = data.find(b"\r\n", 0, _MAX_LINE_BYTES)
        if end < 0:
            if len(data) >= _MAX_LINE_BYTES:
                raise MalformedAnswer("a trailer without an end")
            return self._wait(data)
        self.whole = end == 0
        return data[end + 2 :]
