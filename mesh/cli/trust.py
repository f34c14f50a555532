"""The keys a verifier trusts: named on the command line, never taken from what is verified."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mesh.errors import SchemaError, SignatureError, UsageError

MAX_TRUST_FILE_BYTES = 1024 * 1024


def add_trust_flag(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        required=required,
        metavar="KEY|FILE",
        help="a steward's key, ed25519:<hex>, or a file with one a line; may be given again",
    )


def read_trust(given: Sequence[str]) -> frozenset[bytes]:
    """The 32-byte keys of `--trust` arguments. Raises UsageError for what is no key, SignatureError for a key that
    binds nobody, OSError for a file that cannot be read."""
    keys: set[bytes] = set()
    for item in given:
        if item.startswith("ed25519:"):
            keys.add(_key(item, "--trust"))
        else:
            keys |= _keys_in(Path(item))
    return frozenset(keys)


def _keys_in(path: Path) -> set[bytes]:
    with path.open("rb") as file:
        data = file.read(MAX_TRUST_FILE_BYTES + 1)
    if len(data) > MAX_TRUST_FILE_BYTES:
        raise UsageError(f"--trust {path}: over {MAX_TRUST_FILE_BYTES} bytes")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"--trust {path}: not a text file of keys") from None
    keys = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            keys.add(_key(text, f"--trust {path} line {number}"))
    if not keys:
        raise UsageError(f"--trust {path}: holds no key")
    return keys


def _key(text: str, where: str) -> bytes:
    from mesh.schema.envelope import check_public_key
    from mesh.schema.ids import steward_from_text

    try:
        key = steward_from_text(text)
    except SchemaError as e:
        raise UsageError(f"{where}: {e}") from None
    try:
        check_public_key(key)
    except SignatureError as e:
        raise SignatureError(f"{where}: {text}: {e}") from None
    return key
