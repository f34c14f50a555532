"""Bytes that a crash left half written at the end of SQLite's log.

SQLite ignores them and writes over them later. They are evidence of what was going on, so they are copied beside the
ledger first, with a note: `<ledger>.torn-<digest>` and `<ledger>.torn-<digest>.txt`. The name comes from the bytes, so
a second crash before the next write finds them again and changes nothing. Layout of the log:
https://sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path

from mesh.errors import LedgerUnwritable
from mesh.ledger.format import pragma, wal_path
from mesh.schema.ids import ContentId

_LOG_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_MAGICS = (0x377F0682, 0x377F0683)
# With each new start of the log its first salt goes up by one: frames of earlier rounds, merged long ago, have a salt
# just below.
_EARLIER_ROUNDS = 1 << 20


def set_torn_aside(db: sqlite3.Connection, path: Path) -> Path | None:
    """Copy a torn tail of the log of `path` aside, durably; None where there is none. `db` must not have written."""
    wal = wal_path(path)
    if not wal.exists() or wal.stat().st_size == 0:
        return None
    # recovers the log and says how many frames of it are whole, without writing to it
    frames = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    page_bytes = pragma(db, "page_size")
    try:
        log = wal.read_bytes()
        tail = torn_tail(log, frames=max(frames, 0), page_bytes=page_bytes)
        return _keep(path, tail, len(log) - len(tail)) if tail else None
    except OSError as e:
        raise LedgerUnwritable(f"ledger {path}: torn bytes of its log cannot be set aside: {e.strerror}") from None


def torn_tail(log: bytes, *, frames: int, page_bytes: int) -> bytes:
    """What follows the `frames` whole frames of a log, from the first frame on that is neither left over from an
    earlier round nor zeros."""
    start = _LOG_HEADER_BYTES + frames * (_FRAME_HEADER_BYTES + page_bytes)
    if frames == 0 and (len(log) < _LOG_HEADER_BYTES or struct.unpack_from(">I", log)[0] not in _MAGICS):
        return log if any(log) else b""
    (salt,) = struct.unpack_from(">I", log, 16)
    for at in range(start, len(log), _FRAME_HEADER_BYTES + page_bytes):
        frame = log[at : at + _FRAME_HEADER_BYTES + page_bytes]
        if len(frame) >= 12:
            (its_salt,) = struct.unpack_from(">I", frame, 8)
            if 0 < (salt - its_salt) % 2**32 <= _EARLIER_ROUNDS:
                continue
        if any(frame):
            return log[at:]
    return b""


def _keep(path: Path, tail: bytes, offset: int) -> Path:
    name = f"{path.name}.torn-{ContentId.of_bytes(tail).hex()[:16]}"
    target = path.with_name(name)
    note = (
        f"{len(tail)} bytes from offset {offset} of {wal_path(path).name}, left by a crash in mid-write.\n"
        f"No receipt that was acknowledged is in them: the ledger is whole without them. {ContentId.of_bytes(tail)}\n"
    )
    _write(target, tail)
    _write(path.with_name(name + ".txt"), note.encode())
    return target


def _write(target: Path, data: bytes) -> None:
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
