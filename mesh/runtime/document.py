"""JSON as candidates are written in it, and the one spelling over which their digests go."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final

from mesh.errors import CandidateError, EncodingError
from mesh.identity.document import parse_document
from mesh.runtime.limits import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_DEPTH, MAX_DOCUMENT_PARTS

_MAX_DIGITS: Final = 19


def parse(data: bytes, what: str, *, max_bytes: int = MAX_DOCUMENT_BYTES, max_parts: int = MAX_DOCUMENT_PARTS) -> Any:
    """The value that `data` spells; `what` names it in messages. A key that is there twice, a byte order mark, numbers
    that no 64-bit integer or double holds, halves of surrogate pairs and more strings and separators than `max_parts`
    are refused. Raises CandidateError."""
    try:
        return parse_document(
            data, what, max_bytes=max_bytes, max_depth=MAX_DOCUMENT_DEPTH, max_parts=max_parts,
            integer=_integer, fraction=_fraction,
        )  # fmt: skip
    except EncodingError as e:
        raise CandidateError(str(e)) from None


def canonical(value: Any, *, newline: bool = True) -> bytes:
    """Keys sorted, no space, characters beyond ASCII as themselves, UTF-8 and, unless told otherwise, one newline."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + (b"\n" if newline else b"")


def digest(value: Any) -> str:
    """SHA-256 of the canonical spelling, newline included, as 64 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS + 1 or not -(2**63) <= (value := int(text)) < 2**63:
        raise EncodingError(f"{text[:24]} is beyond 64 bits")
    return value


def _fraction(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise EncodingError(f"{text[:24]} is beyond a double")
    return value
