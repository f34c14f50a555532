"""JSON from strangers: bounded, every key once, all of its text valid Unicode."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from mesh.errors import EncodingError

MAX_DOCUMENT_BYTES: Final = 65_536
MAX_DEPTH: Final = 16
MAX_DIGITS: Final = 16
_BOM: Final = b"\xef\xbb\xbf"
# A string, or what stands between two. Possessive: nothing is kept to go back to, however long it is.
_TOKENS: Final = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^"]++')


def whole_or_float(text: str) -> int | float:
    """A number of more than 16 digits comes back as a float: as something that no field may hold."""
    return int(text) if len(text) <= MAX_DIGITS else float(text)


def parse_document(
    data: bytes,
    what: str,
    *,
    max_bytes: int = MAX_DOCUMENT_BYTES,
    max_depth: int = MAX_DEPTH,
    max_parts: int | None = None,
    integer: Callable[[str], int | float] = whole_or_float,
    fraction: Callable[[str], float] = float,
) -> Any:
    """The value that `data` spells, called `what` in messages. `integer` and `fraction` make numbers of their digits
    and may raise EncodingError; a fraction is also what has an exponent. `max_parts` bounds what is made of it before
    it is: its strings, commas and opening brackets together. Raises EncodingError."""
    if len(data) > max_bytes:
        raise EncodingError(f"{what}: over {max_bytes} bytes")
    if data.startswith(_BOM):
        raise EncodingError(f"{what}: begins with a byte order mark")
    if max_parts is not None and _more_parts(data, max_parts):
        raise EncodingError(f"{what}: over {max_parts} strings and separators")
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise EncodingError(f"{what}: not UTF-8 at byte {e.start}") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_int=integer, parse_float=fraction, parse_constant=_refuse
        )
    except EncodingError as e:
        raise EncodingError(f"{what}: {e}") from None
    except RecursionError:
        raise EncodingError(f"{what}: nested deeper than {max_depth}") from None
    except json.JSONDecodeError as e:
        raise EncodingError(f"{what}: not JSON at line {e.lineno} column {e.colno}: {e.msg.lower()}") from None
    _check(value, what, max_depth)
    return value


def _more_parts(data: bytes, most: int) -> bool:
    found = 0
    for token in _TOKENS.finditer(data):
        between = token[0]
        if between.startswith(b'"'):
            found += 1
        else:
            found += between.count(b",") + between.count(b"[") + between.count(b"{")
        if found > most:
            return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two entries of one name a reader would take either."""
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise EncodingError(f"key {key[:80]!a} is there twice")
        value[key] = item
    return value


def _refuse(constant: str) -> NoReturn:
    raise EncodingError(f"{constant} is not JSON")


def _check(value: Any, what: str, max_depth: int) -> None:
    # an iterator a level: what is still to be looked at is not copied
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels:
        for item in levels[-1]:
            if isinstance(item, str):
                _check_text(item, what)
            elif isinstance(item, dict | list):
                if len(levels) > max_depth:
                    raise EncodingError(f"{what}: nested deeper than {max_depth}")
                if isinstance(item, dict):
                    for key in item:
                        _check_text(key, what)
                levels.append(iter(item.values() if isinstance(item, dict) else item))
                break
        else:
            levels.pop()


def _check_text(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EncodingError(f"{what}: half of a surrogate pair in a text") from None
