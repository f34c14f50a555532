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

# The kinds of values by the numbers that files give them, and of those of fixed size the struct codes, little-endian.
_KINDS = dict(
    enumerate(("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"))
)
_CODES = {
    "u8": "<B",
    "i8": "<b",
    "u16": "<H",
    "i16": "<h",
    "u32": "<I",
    "i32": "<i",
    "f32": "<f",
    "bool": "<?",
    "u64": "<Q",
    "i64": "<q",
    "f64": "<d",
}
_FORMATS = {kind: struct.Struct(code) for kind, code in _CODES.items()}


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
        if self.kind in _FORMATS:
            return [number for (number,) in _FORMATS[self.kind].iter_unpack(self.data)]
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
        number = int(reader.number(f"kind of {field}", _FORMATS["u32"]))
        kind = _KINDS.get(number)
        start = reader.at
        value: MetadataValue
        match kind:
            case None:
                raise reader.fault(field, f"value kind {number}, expected 0 to 12", start - 4)
            case "string":
                value = reader.string(field, MAX_STRING_BYTES)
            case "array":
                value = _read_array(reader, field, strings_left)
                strings_left -= value.count if value.kind == "string" else 0
            case "bool":
                value = reader.number(field, _FORMATS["u8"])
                if value not in (0, 1):
                    raise reader.fault(field, f"boolean {value}, expected 0 or 1", start)
                value = bool(value)
            case _:
                value = reader.number(field, _FORMATS[kind])
        pairs[key] = _Pair(kind, value, start)
    return Metadata(reader.label, pairs)


def _read_array(reader: Reader, field: str, strings_left: int) -> GgufArray:
    start = reader.at
    number = int(reader.number(f"element kind of {field}", _FORMATS["u32"]))
    kind = _KINDS.get(number)
    match kind:
        case None:
            raise reader.fault(field, f"element kind {number}, expected 0 to 12", start)
        case "array":
            raise reader.fault(field, "array of arrays, which no engine reads", start)
        case "string":
            count = reader.length(f"count of {field}", strings_left)
            data = reader.strings(field, count, MAX_STRING_BYTES)
        case "bool":
            count, data = _read_items(reader, field, kind)
            if data.strip(b"\0\1"):
                raise reader.fault(field, "booleans other than 0 and 1", start)
        case _:
            count, data = _read_items(reader, field, kind)
    return GgufArray(kind, count, data)


def _read_items(reader: Reader, field: str, kind: str) -> tuple[int, bytes]:
    # The file's size bounds it: `take` compares before it reads.
    count = reader.length(f"count of {field}", reader.size)
    return count, reader.take(field, count * _FORMATS[kind].size)
