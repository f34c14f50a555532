"""The kinds of postcard that hold no other: numbers, text, bytes; and the cursor that all kinds read from."""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from typing import Any, Final

from mesh.errors import PostcardError

_LENGTH_BITS: Final = 64  # counts are usize, which is written as u64
_SHOWN: Final = 80


class Reader:
    """A cursor over `data`; every length is held against what is left before it is used. `unasked` are the structures
    that were read and have yet to say whether their fields go together."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.unasked: list[Any] = []

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def fault(self, what: str, message: str) -> PostcardError:
        return PostcardError(f"postcard: {what} at byte {self.at}: {message}")

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise self.fault(what, f"{count} bytes expected, {self.left} are left")
        start = self.at
        self.at += count
        return self.data[start : self.at]

    def varint(self, bits: int, what: str) -> int:
        data, at, end = self.data, self.at, len(self.data)
        value = shift = 0
        while True:
            if at >= end:
                raise self.fault(what, "the data ends within a varint")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise self.fault(what, f"a varint of more bytes than u{bits} has")
        if value >> bits:
            raise self.fault(what, f"{value}, expected at most {(1 << bits) - 1}")
        if byte == 0 and shift:
            raise self.fault(what, "a varint that is longer than it need be")
        self.at = at
        return value

    def count(self, most: int, least_bytes: int, what: str) -> int:
        """A length: at most `most` items, which take at least `least_bytes` bytes each."""
        value = self.varint(_LENGTH_BITS, f"length of {what}")
        if value > most:
            raise self.fault(f"length of {what}", f"{value}, expected at most {most}")
        if value * least_bytes > self.left:
            raise self.fault(f"length of {what}", f"{value} items, more than {self.left} bytes can hold")
        return value


def write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class Kind(ABC):
    """A type of the schema. `least` is the fewest bytes that a value takes."""

    least: int

    @abstractmethod
    def write(self, out: bytearray, value: Any, what: str) -> None:
        """Raises PostcardError for a value of another type or out of range."""

    @abstractmethod
    def read(self, reader: Reader, what: str) -> Any: ...


def wrong(what: str, value: Any, expected: str) -> PostcardError:
    return PostcardError(f"postcard: {what} is {str(value)[:_SHOWN]!r}, expected {expected}")


class Unsigned(Kind):
    """u8 (one raw byte), u16 to u128 (a varint); at most `most`."""

    least = 1

    def __init__(self, bits: int, most: int | None = None) -> None:
        self.bits, self.most = bits, (1 << bits) - 1 if most is None else most

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not int or not 0 <= value <= self.most:
            raise wrong(what, value, f"a whole number up to {self.most}")
        if self.bits == 8:
            out.append(value)
        else:
            write_varint(out, value)

    def read(self, reader: Reader, what: str) -> int:
        value = reader.take(1, what)[0] if self.bits == 8 else reader.varint(self.bits, what)
        if value > self.most:
            raise reader.fault(what, f"{value}, expected at most {self.most}")
        return value


class Signed(Kind):
    """i8 (one raw byte), i16 to i128 (zigzag, then a varint)."""

    least = 1

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def write(self, out: bytearray, value: Any, what: str) -> None:
        half = 1 << (self.bits - 1)
        if type(value) is not int or not -half <= value < half:
            raise wrong(what, value, f"a whole number of {self.bits} bits")
        if self.bits == 8:
            out.append(value & 0xFF)
        else:
            write_varint(out, value << 1 if value >= 0 else ~value << 1 | 1)

    def read(self, reader: Reader, what: str) -> int:
        if self.bits == 8:
            return int.from_bytes(reader.take(1, what), "little", signed=True)
        raw = reader.varint(self.bits, what)
        return raw >> 1 if raw & 1 == 0 else ~(raw >> 1)


class Bool(Kind):
    least = 1

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not bool:
            raise wrong(what, value, "a boolean")
        out.append(value)

    def read(self, reader: Reader, what: str) -> bool:
        byte = reader.take(1, what)[0]
        if byte > 1:
            raise reader.fault(what, f"byte {byte}, expected 0 or 1")
        return byte == 1


class Float(Kind):
    """f32, f64. One spelling of each number: no NaN, no negative zero."""

    def __init__(self, bits: int) -> None:
        self._layout = struct.Struct({32: "<f", 64: "<d"}[bits])
        self.least = self._layout.size

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not float or not _plain(value):
            raise wrong(what, value, "a number that is neither NaN nor negative zero")
        try:
            data = self._layout.pack(value)
        except OverflowError:
            raise wrong(what, value, "a number that the type holds") from None
        if self._layout.unpack(data)[0] != value:
            raise wrong(what, value, "a number that the type holds")
        out += data

    def read(self, reader: Reader, what: str) -> float:
        value: float = self._layout.unpack(reader.take(self._layout.size, what))[0]
        if not _plain(value):
            raise reader.fault(what, f"{value}, which has another spelling")
        return value


def _plain(value: float) -> bool:
    return not math.isnan(value) and not (value == 0 and math.copysign(1, value) < 0)


class Text(Kind):
    """A string of at most `most` bytes of UTF-8; at least one unless it may be `empty`."""

    least = 1

    def __init__(self, most: int, *, empty: bool = False) -> None:
        self.most, self.empty = most, empty

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not str:
            raise wrong(what, value, "text")
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise wrong(what, repr(value), "unicode text") from None
        if len(data) > self.most or not (data or self.empty):
            raise wrong(what, value, f"text of 1 to {self.most} bytes")
        write_varint(out, len(data))
        out += data

    def read(self, reader: Reader, what: str) -> str:
        data = reader.take(reader.count(self.most, 1, what), what)
        if not (data or self.empty):
            raise reader.fault(what, "empty, expected text")
        try:
            return data.decode()
        except UnicodeDecodeError as e:
            raise reader.fault(what, f"not UTF-8: {e.reason}") from None


class Char(Kind):
    """One code point, written as a string."""

    least = 2

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not str or len(value) != 1:
            raise wrong(what, value, "one code point")
        Text(4).write(out, value, what)

    def read(self, reader: Reader, what: str) -> str:
        text = Text(4).read(reader, what)
        if len(text) != 1:
            raise reader.fault(what, f"{len(text)} code points, expected one")
        return text


class Bytes(Kind):
    """A byte string of at most `most` bytes."""

    least = 1

    def __init__(self, most: int) -> None:
        self.most = most

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not bytes or len(value) > self.most:
            raise wrong(what, value, f"at most {self.most} bytes")
        write_varint(out, len(value))
        out += value

    def read(self, reader: Reader, what: str) -> bytes:
        return reader.take(reader.count(self.most, 1, what), what)


class Fixed(Kind):
    """[u8; size]: the bytes alone."""

    def __init__(self, size: int) -> None:
        self.least = self.size = size

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not bytes or len(value) != self.size:
            raise wrong(what, value.hex() if isinstance(value, bytes) else value, f"{self.size} bytes")
        out += value

    def read(self, reader: Reader, what: str) -> bytes:
        return reader.take(self.size, what)


class Words(Kind):
    """An enum of variants without fields, as words."""

    least = 1

    def __init__(self, *words: str) -> None:
        self.words = words

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if type(value) is not str or value not in self.words:
            raise wrong(what, value, f"one of {', '.join(self.words)}")
        write_varint(out, self.words.index(value))

    def read(self, reader: Reader, what: str) -> str:
        index = reader.varint(32, what)
        if index >= len(self.words):
            raise reader.fault(what, f"variant {index}, expected less than {len(self.words)}")
        return self.words[index]


class Constant(Kind):
    """The one text that may stand here."""

    def __init__(self, text: str) -> None:
        self.text, self._kind = text, Text(len(text.encode()))
        self.least = 1 + len(text.encode())

    def write(self, out: bytearray, value: Any, what: str) -> None:
        if value != self.text:
            raise wrong(what, value, repr(self.text))
        self._kind.write(out, value, what)

    def read(self, reader: Reader, what: str) -> str:
        value = self._kind.read(reader, what)
        if value != self.text:
            raise reader.fault(what, f"{value!r}, expected {self.text!r}")
        return self.text


U8, U16, U32, U64, U128 = (Unsigned(bits) for bits in (8, 16, 32, 64, 128))
I8, I16, I32, I64, I128 = (Signed(bits) for bits in (8, 16, 32, 64, 128))
BOOL, F32, F64, CHAR = Bool(), Float(32), Float(64), Char()
