"""What happens between a file name and a ledger that may be written: create, set aside, migrate, check, take over."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from mesh.errors import LedgerCorrupt, LedgerError, LedgerUnwritable, MeshError
from mesh.ledger.format import FAULTS, PAGE_BYTES, check_format, connect, migrate, primary_code, rollback, translate
from mesh.ledger.torn import set_torn_aside
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, Sealed, verify
from mesh.schema.ids import ContentId, steward_text

AUTOCHECKPOINT_PAGES = 1000
_LOG_REST_BYTES = 4 * 1024 * 1024  # what the log shrinks to when a merge has emptied it


@dataclass(frozen=True, slots=True)
class Opened:
    db: sqlite3.Connection
    owner_epoch: int
    file: str
    moved: bool
    torn: Path | None


def file_of(path: Path) -> str:
    """`device:inode` of the file, empty where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_dev}:{stat.st_ino}"


def open_file(path: Path, steward: bytes) -> Opened:
    """The caller holds the owner lock. Raises as `Ledger.open`."""
    _make_private(path)
    db: sqlite3.Connection | None = None
    try:
        db = connect(path, mode="rw")
        version = check_format(db, path)
        # before anything is written: the next commit may land on what a crash has left
        torn = set_torn_aside(db, path) if version else None
        if version == 0:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        _configure(db, path)
        migrate(db, version)
        # not only where it was made just now: a crash may have come between the two
        db.execute(
            "INSERT OR IGNORE INTO meta SELECT 1, ?, 0, NULL, 0, NULL WHERE NOT EXISTS (SELECT 1 FROM receipts)",
            (steward,),
        )
        _check(db, path, steward)
        return _take_over(db, path, torn)
    except BaseException as e:
        if db is not None:
            db.close()
        if isinstance(e, FAULTS):
            if isinstance(e, sqlite3.Error) and primary_code(e) == sqlite3.SQLITE_NOTADB:
                raise LedgerCorrupt(f"{path}: is not a ledger") from None
            raise translate(e, path) from None
        raise


def _make_private(path: Path) -> None:
    """Create the file 0600, or make it so. SQLite gives its -wal and -shm files the same mode."""
    try:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            # never opened here: closing it would drop the locks of SQLite's other connections in this process
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
            return
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as e:
        raise LedgerUnwritable(f"ledger {path}: {e.strerror}") from None


def _configure(db: sqlite3.Connection, path: Path) -> None:
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LedgerUnwritable(f"ledger {path}: journal mode is {mode}, expected wal: not on this file system")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")  # what was kept and is purged is overwritten
    db.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}")
    db.execute(f"PRAGMA journal_size_limit = {_LOG_REST_BYTES}")


def _check(db: sqlite3.Connection, path: Path, steward: bytes) -> None:
    """Whether the ledger is this steward's, agrees with itself, and reaches as far as it once said it did."""
    meta = db.execute("SELECT steward, count, head FROM meta").fetchone()
    if meta is None:
        raise LedgerCorrupt(f"ledger {path}: its head row is missing")
    owner, count, head = meta
    if owner != steward:
        raise LedgerError(f"ledger {path}: belongs to {steward_text(owner)}, the key is {steward_text(steward)}")
    rows, last = db.execute("SELECT count(*), max(seq) FROM receipts").fetchone()
    if rows != count or last != (count - 1 if count else None):
        raise LedgerCorrupt(f"ledger {path}: holds {rows} receipts up to seq {last}, its head row counts {count}")
    if count:
        _check_last(db, path, steward, count, head)
    _check_checkpoint(db, path, steward, count)


def _check_last(db: sqlite3.Connection, path: Path, steward: bytes, count: int, head: bytes) -> None:
    tail = db.execute("SELECT seq, receipt_id, serve_id, envelope FROM receipts ORDER BY seq DESC LIMIT 2").fetchall()
    seq, receipt_id, serve_id, envelope = tail[0]
    if receipt_id != head:
        raise LedgerCorrupt(f"ledger {path}: last receipt is {ContentId(receipt_id)}, head row says {ContentId(head)}")
    sealed = _verify(envelope, RECEIPT_TYPE, steward, f"ledger {path}: receipt {seq}")
    prev = tail[1][1] if count > 1 else None
    said = (sealed.id, sealed.value.seq, sealed.value.serve_id, sealed.value.prev)
    if said != (receipt_id, seq, serve_id, prev):
        raise LedgerCorrupt(f"ledger {path}: receipt {seq} is signed for another place")


def _check_checkpoint(db: sqlite3.Connection, path: Path, steward: bytes, count: int) -> None:
    row = db.execute("SELECT number, envelope FROM checkpoints ORDER BY number DESC LIMIT 1").fetchone()
    if row is None:
        return
    checkpoint = _verify(row[1], CHECKPOINT_TYPE, steward, f"ledger {path}: checkpoint {row[0]}").value
    if checkpoint.count > count:
        raise LedgerCorrupt(
            f"ledger {path}: holds {count} receipts, its last signed checkpoint counts {checkpoint.count}"
        )
    if checkpoint.count:
        at = db.execute("SELECT receipt_id FROM receipts WHERE seq = ?", (checkpoint.count - 1,)).fetchone()[0]
        if at != checkpoint.head:
            raise LedgerCorrupt(
                f"ledger {path}: receipt {checkpoint.count - 1} is {ContentId(at)}, its last signed checkpoint says "
                f"{ContentId(checkpoint.head)}"
            )


def _verify(envelope: bytes, content_type: str, steward: bytes, what: str) -> Sealed:
    try:
        return verify(envelope, content_type, {steward})
    except MeshError as e:
        raise LedgerCorrupt(f"{what}: {e}") from None


def _take_over(db: sqlite3.Connection, path: Path, torn: Path | None) -> Opened:
    db.execute("BEGIN IMMEDIATE")
    try:
        epoch, recorded = db.execute("SELECT owner_epoch, file FROM meta").fetchone()
        file = file_of(path)
        db.execute("UPDATE meta SET owner_epoch = ?, file = ?", (epoch + 1, file))
        db.execute("COMMIT")
    except BaseException:
        rollback(db)
        raise
    return Opened(db, epoch + 1, file, moved=recorded is not None and recorded != file, torn=torn)
