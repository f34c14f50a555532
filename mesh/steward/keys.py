"""The steward's signing key on disk: one line, `mesh-seed-1 <64 hex>`, in a file that only its owner can read.

Whoever reads the file can sign receipts as this steward, so a file that others could have read or replaced is refused
rather than repaired: the operator must know, and may want a new key.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from mesh.errors import KeyFileError
from mesh.schema.envelope import SigningKey

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
    _check_directory(path)
    try:
        # O_NONBLOCK: a pipe put in its place must not hang the start
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise KeyFileError(f"key file {path}: does not exist") from None
    except OSError as e:
        why = "is a symbolic link, expected a plain file" if path.is_symlink() else e.strerror
        raise KeyFileError(f"key file {path}: {why}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"key file {path}: not a plain file")
        if status.st_uid != os.geteuid():
            raise KeyFileError(f"key file {path}: owned by user {status.st_uid}, expected {os.geteuid()}; chown it")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise KeyFileError(
                f"key file {path}: mode is {mode:04o}, expected 0600; run `chmod 600` on it, or start in another "
                "state directory with a new key if others may have read it"
            )
        line = os.read(fd, _FILE_BYTES + 1)
    except OSError as e:
        raise KeyFileError(f"key file {path}: {e.strerror}") from None
    finally:
        os.close(fd)
    match = _LINE.fullmatch(line)
    if match is None:  # what it holds instead is nobody's business
        raise KeyFileError(f"key file {path}: malformed, expected one line `mesh-seed-1 <64 lower-case hex>`")
    return SigningKey(bytes.fromhex(match[1].decode()))


def backup(path: Path, target: Path) -> None:
    """Copy the key into the new file `target`, 0600. Raises KeyFileError where that exists, or as `load` does."""
    _write_new(target, load(path).seed, f"key backup {target}")


def _create(path: Path, seed: bytes) -> None:
    """Make the file appear whole, and only if nobody else has made it meanwhile."""
    _check_directory(path)
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
    _sync_directory(path.parent)


def _write_new(path: Path, seed: bytes, what: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise KeyFileError(f"{what}: exists already, and is never overwritten") from None
    except OSError as e:
        raise KeyFileError(f"{what}: {e.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            file.write(b"mesh-seed-1 " + seed.hex().encode() + b"\n")
            file.flush()
            os.fsync(fd)
        _sync_directory(path.parent)
    except OSError as e:
        path.unlink(missing_ok=True)
        raise KeyFileError(f"{what}: {e.strerror}") from None


def _check_directory(path: Path) -> None:
    """Refuse a directory in which others could put another key in the place of this one."""
    try:
        mode = path.parent.stat().st_mode
    except OSError as e:
        raise KeyFileError(f"key directory {path.parent}: {e.strerror}") from None
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise KeyFileError(
            f"key directory {path.parent}: mode is {stat.S_IMODE(mode):04o}, others may replace the key in it; run "
            "`chmod 700` on it"
        )


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
