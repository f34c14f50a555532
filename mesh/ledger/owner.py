"""Who may write: one process per ledger file, and one per steward key on a host.

The lock file keeps a second process off the same directory. A copy of the directory has a lock file of its own, so on
Linux the steward's key is claimed as well, as the name of an abstract unix socket: it needs no file, and the kernel
lets it go with the process. Copies on two hosts are told by their receipts (`sequence`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from mesh.errors import LedgerLocked, LedgerUnwritable
from mesh.schema.ids import steward_text


class OwnerLock:
    """Held from construction to `close`. Raises LedgerLocked where somebody else has it."""

    def __init__(self, path: Path, steward: bytes) -> None:
        self._fd = _lock_file(path)
        try:
            self._socket = _claim_key(steward)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Let go. The lock file stays: removing it would let two processes lock two files of one name."""
        if self._socket is not None:
            self._socket.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock_file(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise LedgerUnwritable(f"lock file {path}: {e.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise LedgerLocked(f"lock file {path}: held by process {holder or 'unknown'}") from None
    except OSError as e:
        os.close(fd)
        raise LedgerUnwritable(f"lock file {path}: {e.strerror}") from None
    with suppress(OSError):  # only the message above reads it; a full disk must not look like a lock that is held
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _claim_key(steward: bytes) -> socket.socket | None:
    if sys.platform != "linux":
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(b"\0mesh-steward-" + steward.hex().encode())
    except OSError as e:
        claim.close()
        if e.errno == errno.EADDRINUSE:
            raise LedgerLocked(
                f"steward {steward_text(steward)}: another process on this host signs with this key, from a copy of "
                "the state directory"
            ) from None
        return None  # a sandbox without unix sockets: the lock file stands alone
    return claim
