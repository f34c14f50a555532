"""A cursor over the head of a file that never holds more than what the file really has."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from mesh.errors import ModelFileError

MAX_HEADER_BYTES = 134_217_728  # the largest vocabularies in use need under 20 MB
READ_AHEAD_BYTES = 262_144

_LENGTH = struct.Struct("<Q")


class Reader:
    """Little-endian fields of a file, in order. `at` is the offset of the next byte, `size` the file's real size.

    A declared length is compared with what the file still has before anything of that length is read.
    """

    def __init__(self, file: BinaryIO, label: str) -> None:
        self.label = label
        self.at = 0
        self.size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._file = file
        self._data = bytearray()

    def fault(self, field: str, message: str, offset: int | None = None) -> ModelFileError:
        """The error for a fault in `field`, at the cursor unless `offset` says otherwise; for the caller to raise."""
        offset = self.at if offset is None else offset
        return ModelFileError(f"{self.label}: {field} at byte {offset}: {message}", field=field, offset=offset)

    def take(self, field: str, count: int) -> bytes:
        self._need(field, count)
        start = self.at
        self.at += count
        return bytes(self._data[start : self.at])

    def number(self, field: str, layout: struct.Struct) -> int | float:
        self._need(field, layout.size)
        value: int | float
        (value,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return value

    def length(self, field: str, maximum: int) -> int:
        """A 64-bit count or length of at most `maximum`."""
        start = self.at
        value = int(self.number(field, _LENGTH))
        if value > maximum:
            raise self.fault(field, f"{value}, expected at most {maximum}", start)
        return value

    def string(self, field: str, maximum: int) -> str:
        """A string of at most `maximum` bytes behind its 64-bit length."""
        start = self.at
        raw = self.take(field, self.length(f"length of {field}", maximum))
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self.fault(field, f"not UTF-8: {e.reason}", start + _LENGTH.size + e.start) from None

    def strings(self, field: str, count: int, maximum: int) -> bytes:
        """The bytes of `count` strings of at most `maximum` bytes, lengths included. Vocabularies hold pieces of
        characters, so nothing is decoded here."""
        self._fits(field, count * _LENGTH.size)
        # Spelled out, not through `length` and `take`: a vocabulary is a hundred thousand turns of this loop.
        unpack, data, have, at = _LENGTH.unpack_from, self._data, len(self._data), self.at
        start = at
        for i in range(count):
            body = at + 8
            if body > have:
                self.at = at
                self._need(f"{field}[{i}]", 8)
                have = len(data)
            (length,) = unpack(data, at)
            at = body + length
            if at > have or length > maximum:
                self.at = body
                if length > maximum:
                    raise self.fault(f"{field}[{i}]", f"length {length}, expected at most {maximum}", body - 8)
                self._need(f"{field}[{i}]", length)
                have = len(data)
        self.at = at
        return bytes(data[start:at])

    def _fits(self, field: str, count: int) -> None:
        if count > self.size - self.at:
            raise self.fault(field, f"{count} bytes declared, file has {self.size} bytes")
        if self.at + count > MAX_HEADER_BYTES:
            raise self.fault(field, f"header is longer than {MAX_HEADER_BYTES} bytes")

    def _need(self, field: str, count: int) -> None:
        if self.at + count <= len(self._data):
            return
        self._fits(field, count)
        have = len(self._data)
        left = min(max(self.at + count - have, READ_AHEAD_BYTES), self.size - have)
        while left:
            piece = self._file.read(min(left, READ_AHEAD_BYTES))
            if not piece:
                raise self.fault(field, f"file ends at byte {len(self._data)}, it had {self.size} bytes")
            self._data += piece
            left -= len(piece)
