"""JSON from strangers: bounded, every key once, all of its text valid Unicode."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from mesh.errors import EncodingError

MAX_DOCUMENT_BYTES: Final = 65_536
MAX_DEPTH: Final = 16
MAX_DIGITS: Final = 16


def parse_document(data: bytes, what: str) -> Any:
    """The value that `data` spells, called `what` in messages. A number with a fraction or an exponent, or of more than
    16 digits, comes back as a float: as something that no field may hold. Raises EncodingError."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise EncodingError(f"{what}: more than {MAX_DOCUMENT_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise EncodingError(f"{what}: not UTF-8 at byte {e.start}") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_float=float, parse_constant=_refuse
        )
    except EncodingError as e:
        raise EncodingError(f"{what}: {e}") from None
    except RecursionError:
        raise EncodingError(f"{what}: nested deeper than {MAX_DEPTH}") from None
    except ValueError as e:
        at = getattr(e, "pos", None)
        raise EncodingError(f"{what}: not JSON" + ("" if at is None else f" at character {at}")) from None
    _check(value, what)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise EncodingError(f"key {twice[:80]!a} is there twice")
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MAX_DIGITS else float(text)


def _refuse(constant: str) -> NoReturn:
    raise EncodingError(f"{constant} is not JSON")


def _check(value: Any, what: str) -> None:
    left = [(value, 1)]
    while left:
        value, depth = left.pop()
        if isinstance(value, str):
            _check_text(value, what)
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise EncodingError(f"{what}: nested deeper than {MAX_DEPTH}")
            if isinstance(value, dict):
                for key in value:
                    _check_text(key, what)
            left += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EncodingError(f"{what}: half of a surrogate pair in a text") from None
