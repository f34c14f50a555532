"""What the fields of an identity may hold. Messages name the field, what it has to be, and what it was."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any, Final

from mesh.errors import MovingReference, SchemaError
from mesh.schema.value import Name, fits

MAX_INTEGER: Final = 2**53 - 1  # what every reader of JSON holds exactly
SHOWN: Final = 80  # characters of a text in a message

_HEX64 = re.compile(r"[0-9a-f]{64}\Z")
# Names that point at something else tomorrow.
_MOVING: Final = frozenset(("main", "master", "head", "latest", "dev", "trunk"))


def check_text(value: object, what: str) -> str:
    """Raises SchemaError for anything but 1 to 256 characters without control characters, not all of them spaces."""
    if not isinstance(value, str):
        raise SchemaError(f"{what}: {kind_of(value)}, expected text")
    if not fits(value, Name) or not value.strip():
        raise SchemaError(f"{what}: expected 1 to 256 characters, not only spaces and none of them a control character")
    return value


def check_hex64(value: object, what: str) -> str:
    text = check_text(value, what)
    if not _HEX64.match(text):
        raise SchemaError(f"{what}: {shown(text)}, expected 64 lower-case hex digits")
    return text


def check_integer(value: object, what: str, least: int) -> int:
    """JSON's true is no 1, and 1.0 is no integer either."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise SchemaError(f"{what}: {kind_of(value)}, expected an integer")
    if not least <= value <= MAX_INTEGER:
        raise SchemaError(f"{what}: {value}, expected {least} to {MAX_INTEGER}")
    return value


def check_pin(value: str, what: str) -> None:
    """Raises MovingReference for a revision that can name something else tomorrow."""
    name = value.strip().lower()
    if name in _MOVING or name.startswith("refs/"):
        raise MovingReference(f"{what}: {shown(value)} moves, expected a revision that names one thing for ever")


def check_object(value: object, what: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The object with these fields and no others. Raises SchemaError naming every one that is missing."""
    if not isinstance(value, Mapping):
        raise SchemaError(f"{what}: {kind_of(value)}, expected an object")
    missing = [name for name in required if name not in value]
    if missing:
        raise SchemaError(f"{what}: {', '.join(missing)} missing: what is not stated has no default")
    for name in value:
        if name not in required and name not in optional:
            raise SchemaError(f"{what}: unknown field {shown(str(name))}")
    return dict(value)


def shown(text: str) -> str:
    """A stranger's text as a message may hold it: short, in quotes, nothing that a terminal would obey."""
    text = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return repr(text) if text.isprintable() else ascii(text)


def kind_of(value: object) -> str:
    """What JSON calls it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | Decimal):  # the gateway's reader makes the second of it
        return "a number that is no integer of at most 16 digits"
    return {str: "text", int: "a number", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)
