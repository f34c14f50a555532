"""The ledger of one steward, as its owner writes it.

Nothing is acknowledged that is not on disk: every future resolves after the commit that holds its work. `make` is
called on the writer thread inside that transaction, so the place of a receipt, its signature and its row are one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from mesh.errors import LedgerLocked, LedgerUnwritable
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.registry import RecipeStatus
from mesh.identity.shard import ShardIdentity
from mesh.ledger import opening
from mesh.ledger.blueprints import ServedUnder, served_work
from mesh.ledger.format import BUSY_TIMEOUT_MS, translate, wal_path
from mesh.ledger.group import GroupCommit
from mesh.ledger.owner import OwnerLock
from mesh.ledger.reader import LedgerReader
from mesh.ledger.recipes import certify_work, register_work
from mesh.ledger.transaction import Transaction
from mesh.ledger.values import Intent, Kept, Position
from mesh.ledger.work import checkpoint_work, intent_work, purge_work, seal_work
from mesh.schema.envelope import Sealed

# The log is merged every 4 MiB. It grows beyond that only while somebody reads without pause; from here on the writer
# waits for a gap and says so.
WAL_LIMIT_BYTES = 64 * 1024 * 1024
_GAP_TIMEOUT_MS = 100
_RETRY_S = 1.0  # between two tries to merge what a purge has left, so that seals do not wait for each of them

Make = Callable[[Position], Sealed]

_log = logging.getLogger("mesh.ledger")


class Ledger:
    """One process, one writer thread. `moved` says that the file is not where or what it was when it was last open (a
    copy, a restored backup, another disk): its steward may be at work elsewhere too. `torn` is where bytes were set
    aside that a crash had left half written."""

    def __init__(self, path: Path, lock: OwnerLock, opened: opening.Opened, wal_limit: int) -> None:
        self.path = path
        self.moved = opened.moved
        self.torn = opened.torn
        self._file = opened.file
        self._epoch = opened.owner_epoch
        self._lock = lock
        self._wal = wal_path(path)
        self._wal_limit = self._wal_alarm = wal_limit
        self._reader = LedgerReader(path)
        self._closed = False
        self._purged = False
        self._settings: set[bytes] = set()  # digests of settings documents that this process has written
        self._open: set[bytes] = set()  # serves whose intents this process has written and not sealed, under no grant
        self._retry_at = 0.0
        self._group = GroupCommit(
            opened.db, begin=self._begin, translate=lambda e: translate(e, path), tend=self._tend_log
        )

    @classmethod
    def open(cls, path: Path, *, steward: bytes, wal_limit_bytes: int = WAL_LIMIT_BYTES) -> Self:
        """Open or create the ledger file `path` of the 32-byte key `steward`; its directory is made 0700 if need be.

        Raises LedgerLocked (another owner), LedgerVersion, LedgerCorrupt (it contradicts itself or its last signed
        checkpoint), LedgerUnwritable, or LedgerError (not a ledger, or another steward's).
        """
        path = Path(os.path.realpath(path))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise LedgerUnwritable(f"state directory {path.parent}: {e.strerror}") from None
        lock = OwnerLock(path.with_name(path.name + ".lock"), steward)
        try:
            return cls(path, lock, opening.open_file(path, steward), wal_limit_bytes)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Finish what is queued, merge the log, let the lock go."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            self._group.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reader(self) -> LedgerReader:
        """Reads on connections of its own, never the writer's."""
        return self._reader

    @property
    def wal_bytes(self) -> int:
        """The size of the log that is not merged yet."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def free_bytes(self) -> int | None:
        """What its file system still has for this process; None where that does not say. A quota may be less."""
        said = os.statvfs(self.path.parent)
        return said.f_bavail * said.f_frsize if said.f_blocks else None

    def open_intent(self, intent: Intent) -> Future[bytes | None]:
        """Write down that a serve is about to start. Resolves to None once that is durable, or to the serve id of the
        first serve under this caller and idempotency key, sealed already, if there is one: then nothing was written.
        Raises Conflict (`idempotency_in_flight`, `idempotency_mismatch`), LedgerUnwritable, LedgerLocked."""
        return self._group.submit(intent_work(intent))

    def open_intent_async(self, intent: Intent) -> asyncio.Future[bytes | None]:
        """`open_intent` to be awaited; all that wait for one commit cost their loop one wake-up."""
        return self._group.submit_async(intent_work(intent))

    def seal(self, serve_id: bytes, make: Make, kept: Kept | None = None) -> Future[Sealed]:
        """Give the serve its place, have `make` sign a receipt for it, and append that in place of the intent, in one
        transaction. Raises what `make` raises, LedgerUnwritable, LedgerLocked, or LedgerError where there is no such
        intent or the receipt made is not the one asked for; the intent then stays."""
        return self._group.submit(seal_work(serve_id, make, kept))

    def seal_async(self, serve_id: bytes, make: Make, kept: Kept | None = None) -> asyncio.Future[Sealed]:
        """`seal` to be awaited; it is sealed even if its awaiter is cancelled."""
        return self._group.submit_async(seal_work(serve_id, make, kept))

    def checkpoint(self, make: Make) -> Future[Sealed]:
        """Store a signed checkpoint over all receipts there are: `Position.seq` is their number, `prev` the last."""
        return self._group.submit(checkpoint_work(make))

    def checkpoint_async(self, make: Make) -> asyncio.Future[Sealed]:
        return self._group.submit_async(checkpoint_work(make))

    def register_recipe(self, identity: ShardIdentity | CompatibilityFingerprint) -> Future[RecipeStatus]:
        """Make a recipe known. Resolves to its status, which is `dark` unless it was certified before."""
        return self._group.submit(register_work(identity))

    def certify_recipe(
        self, identity: ShardIdentity | CompatibilityFingerprint, evidence: ForwardEvidence
    ) -> Future[RecipeStatus]:
        """Take a recipe out of the dark. Raises RecipeNotCertified for evidence that certifies nothing."""
        return self._group.submit(certify_work(identity, evidence))

    def serve_under(self, start: ServedUnder) -> Future[None]:
        """Write down that this process begins to serve under a blueprint."""
        return self._group.submit(served_work(start))

    def open_intents(self) -> list[Intent]:
        return self._reader.open_intents()

    def purge_kept(self, now_ns: int) -> Future[int]:
        """Delete, and overwrite on disk, what was kept until `now_ns` or earlier. Resolves to the number of serves."""

        def work(transaction: Transaction) -> int:
            purged = purge_work(transaction, now_ns)
            self._purged = self._purged or purged > 0
            return purged

        return self._group.submit(work)

    def _begin(self, db: sqlite3.Connection) -> Transaction:
        # a log written into a file that has lost its name would be lost with it
        if opening.file_of(self.path) != self._file:
            raise LedgerUnwritable(f"ledger {self.path}: the file was moved, replaced or deleted while in use")
        db.execute("BEGIN IMMEDIATE")
        count, head, epoch = db.execute("SELECT count, head, owner_epoch FROM meta").fetchone()
        if epoch != self._epoch:
            raise LedgerLocked(f"ledger {self.path}: another owner took over (epoch {epoch}, expected {self._epoch})")
        return Transaction(db, count, head, self._settings, self._open)

    def _tend_log(self, db: sqlite3.Connection) -> None:
        """Keep the log short: what the automatic merge leaves, and what a purge must not leave."""
        size = self.wal_bytes
        too_long = size > self._wal_alarm
        if not too_long and not (self._purged and time.monotonic() >= self._retry_at):
            return
        try:
            db.execute(f"PRAGMA busy_timeout = {_GAP_TIMEOUT_MS}")
            busy = bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
        except sqlite3.Error as e:
            _log.warning("ledger %s: the log cannot be merged: %s", self.path, e)
            busy = True
        finally:
            db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if busy and too_long:
            _log.warning(
                "ledger %s: the log is held open, %d bytes and growing (limit %d)", self.path, size, self._wal_limit
            )
        self._wal_alarm = max(2 * size, self._wal_limit) if busy else self._wal_limit
        self._purged = self._purged and busy
        self._retry_at = time.monotonic() + _RETRY_S
