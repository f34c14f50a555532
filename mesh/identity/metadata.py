"""The key-value pairs of a GGUF header."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mesh.errors import ModelFileError
from mesh.identity.reader import Reader

MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 16_777_216  # some files carry a whole tokenizer.json
MAX_LISTED_STRINGS = 4_000_000  # over all arrays; the largest vocabularies have 300,000 tokens and as many merges

_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
# Value kinds of fixed size: name and struct code, little-endian.
_SCALARS = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "B"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_FORMATS = {kind: struct.Struct("<" + code) for kind, (_, code) in _SCALARS.items()}
_KIND_NAMES = {kind: name for kind, (name, _) in _SCALARS.items()} | {_STRING: "string", _ARRAY: "array"}


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in the header, left undecoded: a vocabulary is fifty thousand strings that few callers want.

    `kind` is u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool or string.
    """

    kind: str
    count: int
    data: bytes

    def values(self) -> list[Any]:
        """The elements; strings as raw bytes, since a vocabulary holds pieces that are not whole characters."""
        if self.kind != "string":
            code = next(code for name, code in _SCALARS.values() if name == self.kind)
            numbers = struct.unpack(f"<{self.count}{code}", self.data)
            return [bool(n) for n in numbers] if self.kind == "bool" else list(numbers)
        strings, at = [], 0
        for _ in range(self.count):
            start = at + 8
            at = start + int.from_bytes(self.data[at:start], "little")
            strings.append(self.data[start:at])
        return strings


MetadataValue = int | float | bool | str | GgufArray


@dataclass(frozen=True, slots=True)
class _Pair:
    kind: str
    value: MetadataValue
    offset: int  # of the value, in the file


_V = TypeVar("_V", bound=MetadataValue)


class Metadata(Mapping[str, MetadataValue]):
    """The pairs in the file's order. The typed readings give None where the key is absent, and raise ModelFileError
    where its value is of another kind: a caller never works with a guess."""

    def __init__(self, label: str, pairs: Mapping[str, _Pair]) -> None:
        self._label = label
        self._pairs = pairs

    def __getitem__(self, key: str) -> MetadataValue:
        return self._pairs[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def kind(self, key: str) -> str | None:
        """The kind as the file spells it: u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool, string or array."""
        return self._pairs[key].kind if key in self._pairs else None

    def text(self, key: str) -> str | None:
        return self._typed(key, str, "string")

    def integer(self, key: str, *, minimum: int = 0, maximum: int = 2**63 - 1) -> int | None:
        value = self._typed(key, int, "integer")
        if value is not None and not minimum <= value <= maximum:
            raise self.fault(key, f"{value}, expected {minimum} to {maximum}")
        return value

    def flag(self, key: str) -> bool | None:
        return self._typed(key, bool, "boolean")

    def array(self, key: str) -> GgufArray | None:
        return self._typed(key, GgufArray, "array")

    def fault(self, key: str, message: str) -> ModelFileError:
        """The error for a value that means nothing, for the caller to raise."""
        pair = self._pairs.get(key)
        where, offset = ("", None) if pair is None else (f" at byte {pair.offset}", pair.offset)
        return ModelFileError(f"{self._label}: {shown(key)}{where} is {message}", field=key, offset=offset)

    def _typed(self, key: str, kind: type[_V], wanted: str) -> _V | None:
        if key not in self._pairs:
            return None
        value = self._pairs[key].value
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fault(key, f"of kind {self.kind(key)}, expected {wanted}")
        return value


def shown(name: str) -> str:
    """A name from a file as it may stand in a message: short and printable."""
    return name if name.isprintable() and len(name) <= 80 else repr(name[:80])


def read_metadata(reader: Reader, count: int) -> Metadata:
    """Read `count` pairs at the cursor."""
    pairs: dict[str, _Pair] = {}
    strings_left = MAX_LISTED_STRINGS
    for i in range(count):
        start = reader.at
        key = reader.string(f"key {i}", MAX_KEY_BYTES)
        field = shown(key)
        if key in pairs:
            raise reader.fault(field, "key given twice", start)
        kind = int(reader.number(f"kind of {field}", _FORMATS[_UINT32]))
        start = reader.at
        value: MetadataValue
        if kind == _STRING:
            value = reader.string(field, MAX_STRING_BYTES)
        elif kind == _ARRAY:
            value = _read_array(reader, field, strings_left)
            strings_left -= value.count if value.kind == "string" else 0
        elif kind in _FORMATS:
            value = reader.number(field, _FORMATS[kind])
            if kind == _BOOL:
                if value not in (0, 1):
                    raise reader.fault(field, f"boolean {value}, expected 0 or 1", start)
                value = bool(value)
        else:
            raise reader.fault(field, f"value kind {kind}, expected 0 to 12", start - 4)
        pairs[key] = _Pair(_KIND_NAMES[kind], value, start)
    return Metadata(reader.label, pairs)


def _read_array(reader: Reader, field: str, strings_left: int) -> GgufArray:
    start = reader.at
    kind = int(reader.number(f"element kind of {field}", _FORMATS[_UINT32]))
    if kind == _STRING:
        count = reader.length(f"count of {field}", strings_left)
        return GgufArray("string", count, reader.strings(field, count, MAX_STRING_BYTES))
    if kind == _ARRAY:
        raise reader.fault(field, "array of arrays, which no engine reads", start)
    if kind not in _FORMATS:
        raise reader.fault(field, f"element kind {kind}, expected 0 to 12", start)
    # The file's size bounds it: `take` compares before it reads.
    count = reader.length(f"count of {field}", reader.size)
    data = reader.take(field, count * _FORMATS[kind].size)
    if kind == _BOOL and data.strip(b"\0\1"):
        raise reader.fault(field, "booleans other than 0 and 1", start)
    return GgufArray(_KIND_NAMES[kind], count, data)
