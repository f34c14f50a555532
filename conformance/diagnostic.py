"""CBOR in diagnostic notation (RFC 8949 section 8), for readers of a vector, malformed bytes included.

Encoding indicators show what is not the shortest: `24_1` has a head two bytes wide, `[_ 1]` is of indefinite length.
What cannot be read on is in a comment, in hex.
"""

from __future__ import annotations

import json
import struct

_INDENT = "  "
_WIDE = 96
_HALF, _SINGLE, _DOUBLE = 25, 26, 27


class _Malformed(Exception):
    """`at` is the offset from which nothing can be read."""

    def __init__(self, at: int) -> None:
        self.at = at


def diagnostic(data: bytes) -> str:
    """Ends in a newline. Never fails."""
    if not data:
        return "/ no bytes /\n"
    reader = _Reader(data)
    try:
        out = reader.item(0)
    except (_Malformed, RecursionError):
        return f"/ malformed at byte {reader.at}: {_shortened(data)} /\n"
    if reader.at < len(data):
        out += f"\n/ and after it: {_shortened(data[reader.at :])} /"
    return out + "\n"


def _shortened(data: bytes) -> str:
    return f"h'{data[:64].hex()}'" + (f" and {len(data) - 64} bytes more" if len(data) > 64 else "")


class _Reader:
    def __init__(self, data: bytes, *, embedded: bool = True) -> None:
        self.data, self.at, self.embedded = data, 0, embedded

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _Malformed(self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def item(self, depth: int) -> str:
        if depth > 64:
            raise _Malformed(self.at)
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if info == 31:
            return self.indefinite(major, depth)
        if info > 27:
            raise _Malformed(self.at)
        width = info - 23 if info > 23 else 0
        argument = int.from_bytes(self.take(1 << width - 1), "big") if width else info
        if major == 7:
            return self.simple(info, argument)
        return self.definite(major, argument, _indicator(width, argument), depth)

    def definite(self, major: int, argument: int, mark: str, depth: int) -> str:
        match major:
            case 0:
                return f"{argument}{mark}"
            case 1:
                return f"{-1 - argument}{mark}"
            case 2:
                return self.bytes(self.take(argument), mark, depth)
            case 3:
                return _text(self.take(argument)) + mark
            case 4:
                return _container("[", [self.item(depth + 1) for _ in range(self.counted(argument))], "]", mark, depth)
            case 5:
                pairs = [f"{self.item(depth + 1)}: {self.item(depth + 1)}" for _ in range(self.counted(argument))]
                return _container("{", pairs, "}", mark, depth)
            case _:
                return f"{argument}{mark}({self.item(depth)})"

    def counted(self, argument: int) -> int:
        """A number of items that the rest could hold at all."""
        if argument > len(self.data) - self.at:
            raise _Malformed(self.at)
        return argument

    def bytes(self, data: bytes, mark: str, depth: int) -> str:
        """In an envelope, what byte strings hold is shown where it reads as a map."""
        if self.embedded and not mark and len(data) > 16 and data[0] >> 5 == 5:
            inner = _Reader(data, embedded=False)
            try:
                shown = inner.item(depth)
            except _Malformed:
                shown = ""
            if shown and inner.at == len(data):
                return f"<< {shown} >>"
        return f"h'{data.hex()}'{mark}"

    def indefinite(self, major: int, depth: int) -> str:
        parts: list[str] = []
        if major not in (2, 3, 4, 5):
            raise _Malformed(self.at)
        while self.data[self.at : self.at + 1] != b"\xff":
            part = self.item(depth + 1)
            parts.append(f"{part}: {self.item(depth + 1)}" if major == 5 else part)
        self.take(1)
        start, end = {4: ("[", "]"), 5: ("{", "}")}.get(major, ("(", ")"))
        return _container(f"{start}_ ", parts, end, "", depth)

    def simple(self, info: int, argument: int) -> str:
        named = {20: "false", 21: "true", 22: "null", 23: "undefined"}
        if info < 24:
            return named.get(argument, f"simple({argument})")
        if info == 24:
            return f"simple({argument}_0)"
        size, form = {_HALF: (2, ">e"), _SINGLE: (4, ">f"), _DOUBLE: (8, ">d")}[info]
        number = struct.unpack(form, argument.to_bytes(size, "big"))[0]
        word = "NaN" if number != number else "Infinity" if number == float("inf") else repr(number)
        return f"{word}_{info - 24}"


def _indicator(width: int, argument: int) -> str:
    if not width or argument >= (24, 2**8, 2**16, 2**32)[width - 1]:
        return ""
    return f"_{width - 1}"


def _text(raw: bytes) -> str:
    try:
        return json.dumps(raw.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return f"/ text that is not UTF-8: / h'{raw.hex()}'"


def _container(start: str, parts: list[str], end: str, mark: str, depth: int) -> str:
    flat = ", ".join(parts)
    opened = start + (f"{mark} " if mark else "")
    if len(flat) <= _WIDE and "\n" not in flat:
        return f"{opened}{flat}{end}"
    inner = _INDENT * (depth + 1)
    return f"{opened.rstrip()}\n{inner}" + f",\n{inner}".join(parts) + f"\n{_INDENT * depth}{end}"
