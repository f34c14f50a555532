"""HTTP/1.1 answers out of bytes that are cut anywhere. Pure: no socket, no clock."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
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
    """`length` of the body in bytes, None where it is in chunks or ends with the connection; `fault`: why there can be
    no body."""

    status: int
    reusable: bool = False
    length: int | None = None
    chunked: bool = False
    fault: str | None = None


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
    return _with_body(int(told[2]), headers, "close" not in wish and (told[1] == b"1" or "keep-alive" in wish))


def _with_body(status: int, headers: Mapping[str, str], reusable: bool) -> _Head:
    if status < 200:  # one that says that the answer is still to come
        if status == 101:
            raise MalformedAnswer("another protocol")
        return _Head(status)
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return _Head(status, fault="an encoded body, which nobody asked for")
    if status in (204, 304):
        return _Head(status, reusable, 0)
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            return _Head(status, fault="a body in a transfer-encoding that is not known")
        return _Head(status, reusable, chunked=True)
    if length is None:
        return _Head(status)
    if not re.fullmatch(r"[0-9]{1,18}", length):
        return _Head(status, fault="a content-length that is no number")
    return _Head(status, reusable, int(length))


# Chunks of events are of a few lengths.
@lru_cache(maxsize=256)
def _size_of(line: bytes) -> int:
    size = _SIZE.match(line)
    if size is None:
        raise MalformedAnswer("a chunk without a size")
    return int(size[1], 16)


class AnswerReader(ABC):
    """One answer, of which `take`, for whoever wants it to put there, gets the body's bytes as they come, without what
    they are wrapped in. `status` is 0 until it is known, which is before any of them. `whole` once it is over;
    `reusable` then says whether another may follow it."""

    status = 0
    whole = False
    reusable = False
    _rest = b""
    # How what comes is read, at first as a head. A method of the class: one of the answer's own would hold it in a
    # circle, of which an answer leaves none.
    _step: Callable[[AnswerReader, bytes], bytes] | None = None
    _left = 0  # bytes of the body, or of its chunk
    _closes = False  # the line that ends a chunk is to come

    @abstractmethod
    def take(self, data: bytes) -> None: ...

    def forget(self) -> None:
        """What came of a head that broke off: the answer is asked for again."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Raises MalformedAnswer, also for what comes after the end, and what `take` raises."""
        data = self._rest + data if self._rest else data
        self._rest = b""
        while data:
            if self.whole:
                raise MalformedAnswer("more than one answer")
            data = self._read_head(data) if self._step is None else self._step(self, data)

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
        head = _parse_head(data[:end])
        data = data[end + 4 :]
        if head.status < 200:
            return data
        self.status, self.reusable, length = head.status, head.reusable, head.length
        if head.fault is not None:
            raise MalformedAnswer(head.fault)
        if length is None:
            self._step = AnswerReader._read_chunks if head.chunked else AnswerReader._read_to_the_end
        elif length == len(data):  # all of it, as it mostly comes
            self.whole = True
            if data:
                self.take(data)
            return b""
        else:
            self._left, self.whole = length, length == 0
            self._step = AnswerReader._read_counted
        return data

    def _read_counted(self, data: bytes) -> bytes:
        part, rest = data[: self._left], data[self._left :]
        self._left -= len(part)
        self.whole = self._left == 0
        self.take(part)
        return rest

    def _read_to_the_end(self, data: bytes) -> bytes:
        self.take(data)
        return b""

    def _read_chunks(self, data: bytes) -> bytes:
        """As many as are there, handed on together: a stream's events come in chunks of their own."""
        at, size, parts = 0, len(data), []
        try:
            while True:
                if self._left:
                    end = at + self._left
                    if at < size:
                        parts.append(data[at:end])
                    if end > size:
                        self._left = end - size
                        return b""
                    at, self._left, self._closes = end, 0, True
                if self._closes:
                    if size - at < 2:
                        return self._wait(data[at:])
                    if data[at : at + 2] != b"\r\n":
                        raise MalformedAnswer("a chunk that is longer than it says")
                    at, self._closes = at + 2, False
                end = data.find(b"\r\n", at, at + _MAX_LINE_BYTES)
                if end < 0:
                    if size - at >= _MAX_LINE_BYTES:
                        raise MalformedAnswer("a chunk without a size")
                    return self._wait(data[at:])
                at, self._left = end + 2, _size_of(data[at:end])
                if not self._left:
                    self._step = AnswerReader._read_trailer
                    return data[at:]
        finally:
            if parts:
                self.take(parts[0] if len(parts) == 1 else b"".join(parts))

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
