"""The one encoding of a value: deterministic CBOR (RFC 8949 section 4.2.1), strict in both directions.

Payload values are maps with text keys, arrays, integers -2^63..2^64-1, byte strings, text and booleans. Anything else
(floats, tags, null, undefined, other simple values, indefinite lengths) has no encoding here, and bytes that are not
exactly what `encode` would write are refused: a digest is a name only while a value has one spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, cast

import cbor2

from mesh.errors import EncodingError
from mesh.schema.limits import MAX_DEPTH

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
_SCALARS = frozenset((int, str, bytes, bool))


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag is not allowed in a payload")


# Every tag that cbor2 gives a meaning of its own: it would build dates, sets, cycles and regular expressions from
# hostile bytes before anyone could look at them.
_NO_TAGS = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)


def key_order(key: str) -> tuple[int, bytes]:
    """The sort key of a text map key. Bytewise order of encoded keys is length first, then bytes, because the
    encoded head grows with the length."""
    raw = key.encode()
    return len(raw), raw


def encode(value: Any) -> bytes:
    """The canonical bytes of `value`. Raises EncodingError for a value that has none."""
    try:
        return cbor2.dumps(_ordered(value, 0))
    except UnicodeEncodeError as e:
        raise EncodingError(f"text is not valid unicode: {e.reason}") from None


def encode_ordered(value: dict[str, Any]) -> bytes:
    """`encode` for a map already validated and in canonical key order, as `Value.to_map` makes it."""
    try:
        return cbor2.dumps(value)
    except UnicodeEncodeError as e:
        raise EncodingError(f"text is not valid unicode: {e.reason}") from None


def decode(data: bytes, *, max_bytes: int) -> Any:
    """The value that `data` is the canonical encoding of. Raises EncodingError for anything else, trailing bytes and
    inputs longer than `max_bytes` included."""
    value = _load(data, max_bytes, _loads_in_order)
    _check_types(value, 0)
    if cbor2.dumps(value) != data:
        raise EncodingError("not the canonical encoding: a wider head or trailing bytes")
    return value


def decode_map(data: bytes, *, max_bytes: int) -> dict[str, Any]:
    value = decode(data, max_bytes=max_bytes)
    if type(value) is not dict:
        raise EncodingError(f"expected a map, got {_name(value)}")
    return cast(dict[str, Any], value)


def parse(data: bytes, *, max_bytes: int) -> Any:
    """Bounded parsing without any canonical check, for structures (COSE) that have one of their own."""
    return _load(data, max_bytes, _loads_any)


def parse_unchecked(data: bytes, *, max_bytes: int) -> Any:
    """Bounded parsing for a caller who compares `data` with the encoding of what comes out, which finds every other
    spelling of it: of two equal keys, say, only one comes out."""
    return _load(data, max_bytes, _loads_definite)


def _load(data: bytes, max_bytes: int, loads: Callable[[bytes], Any]) -> Any:
    if len(data) > max_bytes:
        raise EncodingError(f"too long: {len(data)} bytes, at most {max_bytes}")
    try:
        return loads(data)
    except (cbor2.CBORError, ValueError, OverflowError, TypeError, LookupError, RecursionError, MemoryError) as e:
        raise EncodingError(f"malformed cbor: {_reason(e)}") from None


def _in_order(mapping: Mapping[Any, Any], _: bool) -> Mapping[Any, Any]:
    keys = list(mapping)
    for key in keys:
        if type(key) is not str:
            raise EncodingError(f"map key is {_name(key)}, not text")
    if keys != sorted(keys, key=key_order):
        raise EncodingError("map keys are not in canonical order")
    return mapping


_loads = partial(cbor2.loads, max_depth=MAX_DEPTH, semantic_decoders=_NO_TAGS)
_loads_any = partial(_loads, allow_duplicate_keys=False)
_loads_definite = partial(_loads, allow_indefinite=False)
_loads_in_order = partial(_loads_any, object_hook=_in_order, allow_indefinite=False)


def _reason(error: BaseException) -> str:
    text = str(error.__cause__ or error).splitlines()
    first = text[0] if text else type(error).__name__
    return "duplicate key" if "duplicate" in first.lower() else first[:160]


def _name(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "a map", list: "an array", str: "text", bytes: "a byte string", bool: "a boolean", int: "an integer",
            float: "a float", cbor2.CBORTag: "a tag"}.get(type(value), f"a {type(value).__name__}")  # fmt: skip


def _check_types(value: Any, depth: int) -> None:
    """Refuse types that payloads do not have, and what lies too deep: cbor2 does not count an empty container."""
    if depth >= MAX_DEPTH and (type(value) is dict or type(value) is list):
        raise EncodingError(f"nested deeper than {MAX_DEPTH}")
    items = value.values() if type(value) is dict else value if type(value) is list else (value,)
    for item in items:
        if type(item) is int:
            # the wire reaches -2^64; payloads stop where other languages' integers do
            if item < INT_MIN:
                raise EncodingError("integer outside -2^63..2^64-1")
        elif type(item) not in _SCALARS:
            if type(item) is not dict and type(item) is not list:
                raise EncodingError(f"{_name(item)} is not allowed in a payload")
            _check_types(item, depth + 1)


def _ordered(value: Any, depth: int) -> Any:
    if depth >= MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        raise EncodingError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise EncodingError("integer outside -2^63..2^64-1")
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise EncodingError(f"map key is {_name(key)}, not text")
        return {key: _ordered(value[key], depth + 1) for key in sorted(value, key=key_order)}
    if isinstance(value, (list, tuple)):
        return [_ordered(item, depth + 1) for item in value]
    raise EncodingError(f"{_name(value)} has no encoding in a payload")
