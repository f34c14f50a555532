"""Files that hold a secret in one line, which only their owner may read.

Whoever reads such a file can sign as its owner, so a file that others could have read or replaced is refused rather
than repaired: the operator must know, and may want a new key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mesh.errors import KeyFileError


def read_secret(path: Path, most: int, what: str = "key file") -> bytes:
    """The bytes in `path`, one more than `most` where there are more. Raises KeyFileError where it is missing, a
    symbolic link, somebody else's, or where others may read it or replace it."""
    check_directory(path)
    try:
        # O_NONBLOCK: a pipe put in its place must not hang the start
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise KeyFileError(f"{what} {path}: does not exist") from None
    except OSError as e:
        why = "is a symbolic link, expected a plain file" if path.is_symlink() else e.strerror
        raise KeyFileError(f"{what} {path}: {why}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"{what} {path}: not a plain file")
        if status.st_uid != os.geteuid():
            raise KeyFileError(f"{what} {path}: owned by user {status.st_uid}, expected {os.geteuid()}; chown it")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise KeyFileError(
                f"{what} {path}: mode is {mode:04o}, expected 0600; run `chmod 600` on it, or start in another "
                "state directory with a new key if others may have read it"
            )
        return os.read(fd, most + 1)
    except OSError as e:
        raise KeyFileError(f"{what} {path}: {e.strerror}") from None
    finally:
        os.close(fd)


def write_secret(path: Path, line: bytes, what: str) -> None:
    """Write the new file `path`, 0600. Raises KeyFileError where it exists or cannot be written."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise KeyFileError(f"{what}: exists already, and is never overwritten") from None
    except OSError as e:
        raise KeyFileError(f"{what}: {e.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            file.write(line)
            file.flush()
            os.fsync(fd)
        sync_directory(path.parent)
    except OSError as e:
        path.unlink(missing_ok=True)
        raise KeyFileError(f"{what}: {e.strerror}") from None


def check_directory(path: Path) -> None:
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


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
