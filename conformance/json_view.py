"""The JSON view of SPEC.md, section Encoding, written down value by value, and its one spelling (RFC 8785)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from conformance.digests import b3, steward_text

_HEX = ("output_commitment", "opening", "nonce", "payload", "output")
_SAFE = 2**53
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def spelled(value: Any, field: str = "") -> str:
    """`field` is the name of the map's entry that the value, or the array around it, stands in."""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _SAFE else f'"{value}"'
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return quoted(_bytes(value, field))
    if isinstance(value, Mapping):
        return members({key: spelled(each, key) for key, each in value.items()})
    return "[" + ",".join(spelled(each, field) for each in value) + "]"


def members(spelled_values: Mapping[str, str]) -> str:
    """Keys by their UTF-16 units."""
    names = sorted(spelled_values, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(f"{quoted(name)}:{spelled_values[name]}" for name in names) + "}"


def quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c, f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'


def _bytes(value: bytes, field: str) -> str:
    if field == "steward" and len(value) == 32:
        return steward_text(value)
    if field == "serve_id" and len(value) == 16:
        return str(uuid.UUID(bytes=value))
    return b3(value) if len(value) == 32 and field not in _HEX else value.hex()
