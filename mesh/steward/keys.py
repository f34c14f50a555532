"""The steward's signing key on disk: one line, `mesh-seed-1 <64 hex>`, in a file that only its owner can read
(see `secret_file`)."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from mesh.errors import KeyFileError
from mesh.schema.envelope import SigningKey
from mesh.steward.secret_file import check_directory, read_secret, sync_directory, write_secret

_LINE = re.compile(rb"mesh-seed-1 ([0-9a-f]{64})\n")
_FILE_BYTES = len("mesh-seed-1 ") + 64 + 1


def load_or_create(path: Path, *, random: Callable[[int], bytes] = secrets.token_bytes) -> SigningKey:
    """The key in `path`; on the first run a new one, in a directory made 0700. Of several first runs at once all get
    the same. Raises KeyFileError as `load` does."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise KeyFileError(f"key directory {path.parent}: {e.strerror}") from None
    if not os.path.lexists(path):
        _create(path, random(32))
    return load(path)


def load(path: Path) -> SigningKey:
    """The key in `path`. Raises KeyFileError where it is missing, malformed, a symbolic link, somebody else's, or
    where others may read it or replace it."""
    match = _LINE.fullmatch(read_secret(path, _FILE_BYTES))
    if match is None:  # what it holds instead is nobody's business
        raise KeyFileError(f"key file {path}: malformed, expected one line `mesh-seed-1 <64 lower-case hex>`")
    return SigningKey(bytes.fromhex(match[1].decode()))


def backup(path: Path, target: Path) -> None:
    """Copy the key into the new file `target`, 0600. Raises KeyFileError where that exists, or as `load` does."""
    _write_new(target, load(path).seed, f"key backup {target}")


def _create(path: Path, seed: bytes) -> None:
    """Make the file appear whole, and only if nobody else has made it meanwhile."""
    check_directory(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    _write_new(part, seed, f"key file {path}")
    try:
        os.link(part, path, follow_symlinks=False)
    except FileExistsError:  # another first run was faster: its key is the key
        pass
    except OSError as e:
        raise KeyFileError(f"key file {path}: {e.strerror}") from None
    finally:
        part.unlink()
    sync_directory(path.parent)


def _write_new(path: Path, seed: bytes, what: str) -> None:
    write_secret(path, b"mesh-seed-1 " + seed.hex().encode() + b"\n", what)
