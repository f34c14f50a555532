"""JSON as candidates are written in it, and the one spelling over which their digests go."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final, NoReturn

from mesh.errors import CandidateError
from mesh.runtime.limits import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_DEPTH

_BOM: Final = b"\xef\xbb\xbf"
_MAX_DIGITS: Final = 19


def parse(data: bytes, what: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The value that `data` spells; `what` names it in messages. A key that is there twice, a byte order mark, numbers
    that no 64-bit integer or double holds and halves of surrogate pairs are refused. Raises CandidateError."""
    if len(data) > max_bytes:
        raise CandidateError(f"{what}: over {max_bytes} bytes")
    if data.startswith(_BOM):
        raise CandidateError(f"{what}: begins with a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise CandidateError(f"{what}: not UTF-8 at byte {e.start}") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_float=_fraction, parse_constant=_refuse
        )
    except _FaultError as e:
        raise CandidateError(f"{what}: {e}") from None
    except RecursionError:
        raise CandidateError(f"{what}: nested deeper than {MAX_DOCUMENT_DEPTH}") from None
    except json.JSONDecodeError as e:
        raise CandidateError(f"{what}: not JSON at line {e.lineno} column {e.colno}: {e.msg.lower()}") from None
    _check(value, what)
    return value


def canonical(value: Any, *, newline: bool = True) -> bytes:
    """Keys sorted, no space, characters beyond ASCII as themselves, UTF-8 and, unless told otherwise, one newline."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + (b"\n" if newline else b"")


def digest(value: Any) -> str:
    """SHA-256 of the canonical spelling, newline included, as 64 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


class _FaultError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _FaultError(f"key {name[:80]!a} is there twice")
            seen.add(name)
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS + 1 or not -(2**63) <= (value := int(text)) < 2**63:
        raise _FaultError(f"{text[:24]} is beyond 64 bits")
    return value


def _fraction(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise _FaultError(f"{text[:24]} is beyond a double")
    return value


def _refuse(constant: str) -> NoReturn:
    raise _FaultError(f"{constant} is not JSON")


def _check(value: Any, what: str) -> None:
    left = [(value, 1)]
    while left:
        value, depth = left.pop()
        if isinstance(value, str):
            _check_text(value, what)
        elif isinstance(value, dict | list):
            if depth > MAX_DOCUMENT_DEPTH:
                raise CandidateError(f"{what}: nested deeper than {MAX_DOCUMENT_DEPTH}")
            if isinstance(value, dict):
                for key in value:
                    _check_text(key, what)
            left += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CandidateError(f"{what}: half of a surrogate pair in a text") from None
