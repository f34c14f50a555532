"""Reading a ledger beside the process that writes it, or where none runs.

Every read is one short transaction on a connection of its own: nothing here can hold the writer's log open, however
long a report takes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from mesh.blueprint.verification import Served
from mesh.errors import LedgerCorrupt, LedgerError, LedgerUnwritable
from mesh.identity.registry import Registry
from mesh.ledger.blueprints import COLUMNS as SERVED
from mesh.ledger.blueprints import HIGHEST, ServedUnder, highest_of, served_of
from mesh.ledger.format import (
    BLUEPRINTS_SINCE,
    FAULTS,
    GRANTS_SINCE,
    RECIPES_SINCE,
    ROUTES_SINCE,
    check_format,
    connect,
    primary_code,
    translate,
    wal_path,
)
from mesh.ledger.recipes import COLUMNS, status_of
from mesh.ledger.values import Entry, Idempotency, Intent, Kept, Total

PAGE_RECEIPTS = 256  # receipts fetched in one read transaction
IDLE_CONNECTIONS = 4

T = TypeVar("T")

_ENTRY = "SELECT seq, receipt_id, serve_id, caller, envelope, request FROM receipts"


class LedgerReader:
    """Read-only; any thread may use it. Its methods raise LedgerError or one of its kinds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises LedgerError where there is no ledger at `path`, LedgerVersion where this program cannot read it."""
        reader = cls(Path(os.path.realpath(path)))
        try:
            reader.count()
        except BaseException:
            reader.close()
            raise
        return reader

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self) -> int:
        return int(self._one("SELECT count FROM meta", int))

    def head(self) -> bytes | None:
        """The last receipt's id, None where there is none yet."""
        head: bytes | None = self._one("SELECT head FROM meta", bytes | None)
        return head

    def steward(self) -> bytes:
        """The 32-byte public key of whose ledger it is."""
        return bytes(self._one("SELECT steward FROM meta", bytes))

    def receipts(
        self,
        *,
        after_seq: int = -1,
        before_seq: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Entry]:
        """The receipts with a `seq` above `after_seq` and below `before_seq` that there are when the iteration
        starts."""
        end = self.count()
        if before_seq is not None:
            end = min(end, before_seq)
        left = end if limit is None else limit
        low, high = after_seq, end
        order = "DESC" if newest_first else "ASC"
        while left > 0:
            page = self._rows(
                f"{_ENTRY} WHERE seq > ? AND seq < ? ORDER BY seq {order} LIMIT ?",
                (low, high, min(left, PAGE_RECEIPTS)),
            )
            if not page:
                return
            for row in page:
                yield Entry(*row)
            left -= len(page)
            if newest_first:
                high = page[-1][0]
            else:
                low = page[-1][0]

    def by_receipt(self, receipt_id: bytes) -> Entry | None:
        rows = self._rows(f"{_ENTRY} WHERE receipt_id = ?", (bytes(receipt_id),))
        return Entry(*rows[0]) if rows else None

    def by_serve(self, serve_id: bytes) -> Entry | None:
        rows = self._rows(f"{_ENTRY} WHERE serve_id = ?", (bytes(serve_id),))
        return Entry(*rows[0]) if rows else None

    def settings(self, digest: bytes) -> bytes | None:
        """The settings document with this digest, in canonical CBOR."""
        rows = self._rows("SELECT document FROM settings WHERE digest = ?", (bytes(digest),))
        return bytes(rows[0][0]) if rows else None

    def route(self, digest: bytes) -> bytes | None:
        """The document of the route of shards with this digest, in canonical CBOR."""
        if self._version() < ROUTES_SINCE:
            return None
        rows = self._rows("SELECT document FROM routes WHERE digest = ?", (bytes(digest),))
        return bytes(rows[0][0]) if rows else None

    def kept(self, serve_id: bytes) -> Kept | None:
        rows = self._rows("SELECT payload, output, prompt, until_ns FROM kept WHERE serve_id = ?", (bytes(serve_id),))
        return Kept(*rows[0]) if rows else None

    def last_checkpoint(self) -> bytes | None:
        """The envelope of the last checkpoint signed."""
        rows = self._rows("SELECT envelope FROM checkpoints ORDER BY number DESC LIMIT 1")
        return bytes(rows[0][0]) if rows else None

    def checkpoints(self, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """The checkpoints with a number above `after`, each with its envelope, in the order in which they were
        signed."""
        while rows := self._rows(
            "SELECT number, envelope FROM checkpoints WHERE number > ? ORDER BY number LIMIT ?",
            (after, PAGE_RECEIPTS),
        ):
            for number, envelope in rows:
                yield number, bytes(envelope)
            after = rows[-1][0]

    def open_intents(self) -> list[Intent]:
        """The serves that have started and have no receipt yet, in the order in which they started."""
        # a ledger that its owner has not opened since it has grants has no such column
        grant_id = "i.grant_id" if self._version() >= GRANTS_SINCE else "NULL"
        rows = self._rows(
            f"""
            SELECT i.serve_id, i.caller, i.request, i.engine, s.document, i.recipe_id, i.started_ns, {grant_id}, k.key,
                k.body_mac
            FROM intents AS i JOIN settings AS s ON s.digest = i.settings_digest
            LEFT JOIN idempotency AS k ON k.caller = i.caller AND k.key = i.idempotency_key
            ORDER BY i.rowid"""  # noqa: S608 - one of the two words above
        )
        return [_intent(*row) for row in rows]

    def totals(self, block_ids: Iterable[bytes]) -> dict[tuple[bytes, str], Total]:
        """What is used of the totals of these blocks, by block id and caveat; one that nobody drew from is absent."""
        ids = [bytes(block_id) for block_id in block_ids]
        if not ids or self._version() < GRANTS_SINCE:
            return {}
        marks = ", ".join("?" * len(ids))
        rows = self._rows(
            f"SELECT block_id, caveat, settled, estimated, reserved FROM totals WHERE block_id IN ({marks})",  # noqa: S608
            tuple(ids),
        )
        return {(bytes(row[0]), row[1]): Total(*row[2:]) for row in rows}

    def registry(self) -> Registry:
        """The recipes that are known, and which of them are certified."""
        if self._version() < RECIPES_SINCE:
            return Registry()
        return Registry(map(status_of, self._rows(f"SELECT {COLUMNS} FROM recipes")))  # noqa: S608

    def blueprints(self) -> list[ServedUnder]:
        """Every start under a blueprint, the first one first."""
        if self._version() < BLUEPRINTS_SINCE:
            return []
        return list(map(served_of, self._rows(f"SELECT {SERVED} FROM blueprints ORDER BY number")))  # noqa: S608

    def highest_blueprint(self, lineage: bytes) -> Served | None:
        """The highest revision of a lineage that was served under, allowed ones too."""
        return None if self._version() < BLUEPRINTS_SINCE else highest_of(self._rows(HIGHEST, (lineage,)))

    def backup(self, target: Path) -> None:
        """Copy the ledger as it is now into a new file, 0600, while others go on writing. Never overwrites: raises
        LedgerUnwritable where `target` exists or cannot be written."""
        target = Path(os.path.realpath(target))
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as e:
            raise LedgerUnwritable(f"backup {target}: {e.strerror}") from None
        try:
            self._use(lambda source: _copy(source, target))
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def _version(self) -> int:
        return int(self._rows("PRAGMA user_version")[0][0])

    def _one(self, sql: str, kind: Any) -> Any:
        """The one value that a row of its own has. SQLite hands out whatever a damaged page says."""
        rows = self._rows(sql)
        if len(rows) != 1 or not isinstance(rows[0][0], kind):
            raise LedgerCorrupt(f"ledger {self._path}: damaged ({sql.lower()}: not what a ledger has there)")
        return rows[0][0]

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        # fetchall runs the statement to its end, and with it the read transaction
        return self._use(lambda db: db.execute(sql, values).fetchall())

    def _use(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._closed:
                raise LedgerError(f"ledger {self._path}: closed")
            db = self._idle.pop() if self._idle else None
        pooled = True
        try:
            if db is None:
                db, pooled = _open(self._path)
            result = read(db)
        except BaseException as e:
            if db is not None:
                db.close()
            if isinstance(e, FAULTS):
                raise translate(e, self._path) from None
            raise
        with self._lock:
            if pooled and not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(db)
                return result
        db.close()
        return result


def _intent(
    serve_id: bytes, caller: str, request: bytes, engine: bytes, settings: bytes, recipe_id: str, started_ns: int,
    grant_id: bytes | None, key: str | None, body_mac: bytes | None,
) -> Intent:  # fmt: skip
    idempotency = None if key is None or body_mac is None else Idempotency(key, body_mac)
    return Intent(serve_id, caller, request, engine, settings, recipe_id, started_ns, idempotency, grant_id)


def _open(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A read-only connection, and whether it may be used again."""
    if not path.is_file():
        raise LedgerError(f"no ledger at {path}")
    try:
        return _checked(connect(path, mode="ro"), path), True
    except sqlite3.Error as e:
        if primary_code(e) == sqlite3.SQLITE_NOTADB:
            raise LedgerCorrupt(f"{path}: is not a ledger") from None
        if primary_code(e) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or not os.access(path, os.R_OK):
            raise
    # SQLite wants to make its -wal and -shm files and may not: a read-only directory. Without a log left over there is
    # nothing to merge, and nobody here can write; but no such connection outlives its read, in case somebody else can.
    wal = wal_path(path)
    if wal.exists() and wal.stat().st_size > 0:
        raise LedgerError(
            f"ledger {path}: the log {wal.name} beside it is not merged yet and the directory is read-only; "
            "copy both files to a writable directory and read them there"
        )
    return _checked(connect(path, mode="ro", immutable=True), path), False


def _checked(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    try:
        if check_format(db, path) == 0:
            raise LedgerCorrupt(f"{path}: is not a ledger (it is empty)")
    except BaseException:
        db.close()
        raise
    return db


def _copy(source: sqlite3.Connection, target: Path) -> None:
    db = connect(target, mode="rw")
    try:
        source.backup(db)
        # a single file that also opens where no -wal can be made
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error as e:
        raise translate(e, target) from None
    finally:
        db.close()
