"""Caveats as flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mesh.errors import SchemaError, TrustFileError, UsageError

_MAX_WHOLE = 2**63 - 1  # where the format's integers end
_MAX_DIGITS = 100  # with zeros before them


def add_caveat_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("caveats, all of which must hold; a list is made by giving a flag again")
    for name, metavar, read, what in _LISTS:
        group.add_argument(f"--{name}", action="append", type=read, metavar=metavar, help=what)
    for name, metavar, read, what in _SINGLE:
        group.add_argument(f"--{name}", type=read, metavar=metavar, help=what)


def caveats_of(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given. Raises UsageError for one that states what it never can; whether they can stand together
    is for the grant to check."""
    from mesh.grant.caveats import check_caveats
    from mesh.schema.canonical import encode

    given = {name: getattr(args, name.replace("-", "_")) for name, *_ in (*_LISTS, *_SINGLE)}
    caveats = {
        name: sorted(set(value), key=encode) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    try:
        check_caveats(caveats)
    except ValueError as e:
        raise UsageError(str(e)) from None
    return caveats


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return read(text)
        except (SchemaError, TrustFileError) as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return checked


def whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number")
    if len(text) > _MAX_DIGITS or int(text) > _MAX_WHOLE:
        raise argparse.ArgumentTypeError(f"{text[:80]} is over 2^63-1")
    return int(text)


# What reads them is imported when it is needed: a command's flags are declared whichever command runs.
def _digest(text: str) -> bytes:
    from mesh.schema.ids import ContentId

    return bytes(ContentId.from_text(text))


def _steward(text: str) -> bytes:
    from mesh.schema.ids import steward_from_text

    return steward_from_text(text)


def _moment(text: str) -> int:
    from mesh.schema.trust import time_from_text

    return time_from_text(text)


digest, steward, moment = _reader(_digest), _reader(_steward), _reader(_moment)


def _recipe_digest(text: str) -> bytes:
    """As `mesh identity fingerprint` prints it, after `sha256:`."""
    from mesh.identity.fields import check_hex64

    return bytes.fromhex(check_hex64(text.removeprefix("sha256:"), "recipe digest"))


def _recipe_or_name(text: str) -> bytes | str:
    """A receipt's view shows the same 32 bytes after `b3:`."""
    if text.startswith("b3:"):
        return _digest(text)
    return _recipe_digest(text) if text.startswith("sha256:") else text


def _blueprint_id(text: str) -> bytes:
    """As `mesh blueprint` prints it; a receipt's view shows the same 32 bytes after `b3:`."""
    from mesh.identity.fields import check_hex64

    return bytes.fromhex(check_hex64(text.removeprefix("sha256:").removeprefix("b3:"), "blueprint id"))


_recipe, _blueprint = _reader(_recipe_or_name), _reader(_blueprint_id)

_LISTS = (
    ("model-in", "b3:HEX", digest, "weights digests, as `mesh weights` prints them"),
    ("recipe-in", "NAME|sha256:HEX", _recipe, "names of models, or digests of runtime recipes (`mesh identity`)"),
    ("backend-in", "ID", str, "backend ids"),
    ("blueprint-in", "sha256:HEX", _blueprint, "blueprint ids, as `mesh blueprint` prints them"),
    ("steward-in", "KEY", steward, "stewards, ed25519:<hex>; a total needs one to be named"),
)
_SINGLE = (
    ("fidelity-at-least", "0..3", whole, "how close the weights must be to the published ones"),
    ("max-tokens", "N", whole, "tokens of one answer"),
    ("max-uj", "N", whole, "microjoules of one serve, by the estimate before it"),
    ("not-before", "TIME", moment, "from this time on, 2026-11-30T08:00:00Z"),
    ("not-after", "TIME", moment, "until this time"),
    ("total-uj", "N", whole, "microjoules of all serves together"),
    ("total-tokens", "N", whole, "tokens of all serves together, prompts and answers"),
)
