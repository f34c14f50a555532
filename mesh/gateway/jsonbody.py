"""Request bodies from anyone: inflated within a bound, parsed with one reading, floats kept exact.

Repeated keys, NaN, endless digits, deep nesting and half surrogates are refused here, so that nothing behind this
module has to think of them.
"""

from __future__ import annotations

import json
import re
import zlib
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from mesh.errors import BadRequest

MAX_NUMBER_CHARS = 64
MAX_JSON_DEPTH = 64
MAX_GZIP_MEMBERS = 16  # an empty one is 20 bytes, and each costs a copy of what follows it

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_GZIP_OR_ZLIB = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's names for the two wrappers


def inflate(data: bytes, encoding: str | None, *, max_bytes: int) -> bytes:
    """The body under its Content-Encoding. Raises BadRequest: `unsupported_encoding`, `body_too_large`,
    `malformed_body`. Never holds more than `max_bytes`, summed over gzip members."""
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return data
    if name not in _GZIP_OR_ZLIB:
        raise BadRequest(
            f"content-encoding {name[:40]!r} is not supported, expected gzip, deflate or none",
            code="unsupported_encoding",
        )
    out = bytearray()
    rest = data
    for _ in range(MAX_GZIP_MEMBERS):
        if not rest:
            break
        stream = zlib.decompressobj(_GZIP_OR_ZLIB[name])
        try:
            out += stream.decompress(rest, max_bytes + 1 - len(out))
        except zlib.error:
            raise BadRequest(f"body: not valid {name} data", code="malformed_body") from None
        if len(out) > max_bytes:
            raise BadRequest(f"body: inflates to over {max_bytes} bytes", code="body_too_large")
        if not stream.eof:
            raise BadRequest(f"body: the {name} data is cut short", code="malformed_body")
        rest = stream.unused_data
    if rest:
        raise BadRequest(f"body: over {MAX_GZIP_MEMBERS} {name} members", code="malformed_body")
    return bytes(out)


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; numbers with a point or exponent as Decimal. Raises BadRequest (`malformed_body`,
    `duplicate_key`)."""
    try:
        value = _decoded(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRequest("body: not valid utf-8", code="malformed_body") from None
    except json.JSONDecodeError as e:
        # the message of the exception quotes nothing, its position does not either
        raise BadRequest(f"body: not valid json at byte {e.pos}", code="malformed_body") from None
    except RecursionError:
        raise BadRequest(f"body: nested deeper than {MAX_JSON_DEPTH}", code="malformed_body") from None
    if type(value) is not dict:
        raise BadRequest("body: expected a json object", code="malformed_body")
    _check(value, 1, surrogates=_SURROGATE_ESCAPE.search(data) is not None)
    return value


def _decoded(text: str) -> Any:
    """What `text` says, with nothing but spaces behind it. Those are looked for where an object does not begin and end
    it, as it mostly does."""
    if text.startswith("{"):
        value, end = _DECODER.raw_decode(text)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadRequest(f"body: duplicate key {key[:80]!r}", code="duplicate_key", param=key[:80])
            seen.add(key)
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise BadRequest(f"body: a number of {len(text)} digits", code="malformed_body")
    return int(text)


def _decimal(text: str) -> Decimal:
    if len(text) > MAX_NUMBER_CHARS:
        raise BadRequest(f"body: a number of {len(text)} digits", code="malformed_body")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise BadRequest("body: a number beyond all bounds", code="malformed_body") from None


def _constant(name: str) -> NoReturn:
    raise BadRequest(f"body: {name} is not json", code="malformed_body")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_decimal, parse_int=_integer, parse_constant=_constant
)


def _check(value: Any, depth: int, *, surrogates: bool) -> None:
    if type(value) is dict or type(value) is list:
        if depth > MAX_JSON_DEPTH:
            raise BadRequest(f"body: nested deeper than {MAX_JSON_DEPTH}", code="malformed_body")
        if surrogates and type(value) is dict:
            for key in value:
                _check(key, depth, surrogates=True)
        for item in value.values() if type(value) is dict else value:
            if surrogates or type(item) is dict or type(item) is list:
                _check(item, depth + 1, surrogates=surrogates)
    elif surrogates and type(value) is str and not _encodes(value):
        raise BadRequest("body: text holds half a surrogate pair", code="malformed_body")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
