"""Putting a block on a list of revoked ones, which a gateway may read at any moment."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.schema.ids import ContentId


def read_revoked(path: Path) -> frozenset[bytes]:
    """The ids on the list. Raises UsageError for a file that is no such list (a pipe, which might never end, is none),
    and OSError."""
    from mesh.grant.revocation import parse_revoked

    data, mode = _read(path)
    if mode is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return parse_revoked(data)


def add_revoked(path: Path, block_id: ContentId) -> bool:
    """Put `block_id` on the list, durably; False where it was there. The list is replaced whole, and keeps its mode; of
    two that write at once both get theirs in. Raises UsageError for a file that is no such list, or where a gateway
    would not read the longer one, and OSError."""
    from mesh.grant.revocation import parse_revoked
    from mesh.schema.limits import MAX_REVOCATION_FILE_BYTES

    path = Path(os.path.realpath(path))  # what is linked to is what a gateway reads
    with _locked(path.parent) as folder:
        before, mode = _read(path)
        if block_id in parse_revoked(before):  # a list that is not one is not written to
            return False
        lines = before if before.endswith(b"\n") or not before else before + b"\n"
        after = lines + f"{block_id.text}\n".encode()
        if len(after) > MAX_REVOCATION_FILE_BYTES:
            raise UsageError(
                f"revocation list: would be over {MAX_REVOCATION_FILE_BYTES} bytes, which no gateway reads"
            )
        _replace(path, after, mode)
        os.fsync(folder)
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """A directory that nobody else adds to a list in, and leaves no file behind that says so."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _read(path: Path) -> tuple[bytes, int | None]:
    """What is in the list, and its mode; None where it is yet to be made."""
    from mesh.schema.limits import MAX_REVOCATION_FILE_BYTES

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise UsageError(f"revocation list {path}: not a regular file")
    with open(fd, "rb") as file:
        return file.read(MAX_REVOCATION_FILE_BYTES + 1), stat.S_IMODE(status.st_mode)


def _replace(path: Path, data: bytes, mode: int | None) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
