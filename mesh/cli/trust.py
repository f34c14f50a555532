"""The keys a verifier trusts: named on the command line, never taken from what is verified."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import TrustFileError

if TYPE_CHECKING:
    from mesh.schema.trust import Trust


def add_trust_flag(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        required=required,
        metavar="KEY|FILE",
        help="a steward's key, ed25519:<hex>, or a file with one a line, with from=TIME and until=TIME behind a key "
        "that was not always good; may be given again",
    )


def read_trust(given: Sequence[str], *, flag: str = "--trust") -> Trust:
    """What the `--trust` arguments, or those of another `flag` or setting, name together. Raises TrustFileError for
    what is no key and for a key that can bind nobody, OSError for a file that cannot be read."""
    from mesh.schema.trust import Trust, trusted_key

    trust = Trust({})
    for item in given:
        try:
            if item.startswith("ed25519:"):
                trust |= Trust.always([trusted_key(item)])
            else:
                trust |= Trust.parse(_content(Path(item)))
        except TrustFileError as e:
            where = flag if item.startswith("ed25519:") else f"{flag} {item}"
            raise TrustFileError(f"{where}: {e}") from None
    return trust


def _content(path: Path) -> bytes:
    """At most one byte more than is taken."""
    from mesh.schema.limits import MAX_TRUST_FILE_BYTES

    with path.open("rb") as file:
        return file.read(MAX_TRUST_FILE_BYTES + 1)
