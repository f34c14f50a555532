"""The ledger's file: its tables, how an older one becomes a current one, and how SQLite's faults read here.

`PRAGMA user_version` is the number of steps a file has been through. A step is a list of statements, run in one
transaction with the new number; a released step never changes, a new format appends one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from mesh.errors import LedgerCorrupt, LedgerError, LedgerLocked, LedgerUnwritable, LedgerVersion

APPLICATION_ID = 0x6D657368  # "mesh", where file(1) looks for it
BUSY_TIMEOUT_MS = 5_000
PAGE_BYTES = 4096
_HEADER_BYTES = 100

Step = Sequence[str]

# `meta` names the last receipt and is moved by a trigger, so that nothing can append a receipt and leave it behind.
_STEP_1: Step = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        steward BLOB NOT NULL CHECK (length(steward) = 32),
        count INTEGER NOT NULL CHECK (count >= 0),
        head BLOB CHECK ((head IS NULL) = (count = 0)),
        owner_epoch INTEGER NOT NULL,
        file TEXT
    )""",
    """
    CREATE TABLE settings (
        digest BLOB PRIMARY KEY,
        document BLOB NOT NULL
    ) WITHOUT ROWID""",
    """
    CREATE TABLE intents (
        serve_id BLOB PRIMARY KEY CHECK (length(serve_id) = 16),
        caller TEXT NOT NULL,
        request BLOB NOT NULL,
        engine BLOB NOT NULL,
        settings_digest BLOB NOT NULL REFERENCES settings (digest),
        recipe_id TEXT NOT NULL,
        started_ns INTEGER NOT NULL,
        idempotency_key TEXT
    )""",
    """
    CREATE TABLE idempotency (
        caller TEXT NOT NULL,
        key TEXT NOT NULL,
        body_mac BLOB NOT NULL,
        serve_id BLOB NOT NULL,
        PRIMARY KEY (caller, key)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE receipts (
        seq INTEGER PRIMARY KEY,
        receipt_id BLOB NOT NULL UNIQUE CHECK (length(receipt_id) = 32),
        serve_id BLOB NOT NULL UNIQUE CHECK (length(serve_id) = 16),
        caller TEXT NOT NULL,
        envelope BLOB NOT NULL,
        request BLOB NOT NULL
    )""",
    """
    CREATE TABLE checkpoints (
        number INTEGER PRIMARY KEY,
        count INTEGER NOT NULL,
        envelope BLOB NOT NULL
    )""",
    """
    CREATE TABLE kept (
        serve_id BLOB PRIMARY KEY CHECK (length(serve_id) = 16),
        payload BLOB NOT NULL,
        output BLOB NOT NULL,
        prompt TEXT,
        until_ns INTEGER NOT NULL
    )""",
    "CREATE INDEX kept_until ON kept (until_ns)",
    # INSERT OR REPLACE deletes without asking the DELETE trigger, so the ids are looked for here as well.
    """
    CREATE TRIGGER receipts_gapless BEFORE INSERT ON receipts
    WHEN NEW.seq IS NOT (SELECT count FROM meta)
        OR EXISTS (SELECT 1 FROM receipts WHERE receipt_id = NEW.receipt_id OR serve_id = NEW.serve_id)
    BEGIN SELECT RAISE(ABORT, 'receipts are gapless, each once'); END""",
    """
    CREATE TRIGGER receipts_head AFTER INSERT ON receipts
    BEGIN UPDATE meta SET count = NEW.seq + 1, head = NEW.receipt_id; END""",
    *(
        f"""
        CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
        BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"""
        for table in ("receipts", "checkpoints")
        for event in ("UPDATE", "DELETE")
    ),
)  # fmt: skip

# What is used of a grant's totals. `settled` is what sealed receipts say, `estimated` what was reserved for those that
# say nothing, `reserved` what serves that run may need: the sum of `draws`, each of which ends with its intent.
_STEP_2: Step = (
    "ALTER TABLE intents ADD COLUMN grant_id BLOB CHECK (grant_id IS NULL OR length(grant_id) = 32)",
    """
    CREATE TABLE totals (
        block_id BLOB NOT NULL CHECK (length(block_id) = 32),
        caveat TEXT NOT NULL,
        settled INTEGER NOT NULL CHECK (settled >= 0),
        estimated INTEGER NOT NULL CHECK (estimated >= 0),
        reserved INTEGER NOT NULL CHECK (reserved >= 0),
        PRIMARY KEY (block_id, caveat)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE draws (
        serve_id BLOB NOT NULL CHECK (length(serve_id) = 16),
        block_id BLOB NOT NULL CHECK (length(block_id) = 32),
        caveat TEXT NOT NULL,
        amount INTEGER NOT NULL CHECK (amount >= 0),
        PRIMARY KEY (serve_id, block_id, caveat)
    ) WITHOUT ROWID""",
)

# Which recipes are known: dark where `evidence` is NULL, else certified by it. `labels` and `evidence` are JSON.
_STEP_3: Step = (
    """
    CREATE TABLE recipes (
        model_artifact_digest BLOB NOT NULL CHECK (length(model_artifact_digest) = 32),
        runtime_recipe_digest BLOB NOT NULL CHECK (length(runtime_recipe_digest) = 32),
        labels TEXT NOT NULL,
        evidence TEXT,
        PRIMARY KEY (model_artifact_digest, runtime_recipe_digest)
    ) WITHOUT ROWID""",
)

# Which blueprints were served under, a row for each start; `allowed` is what an operator let pass.
_STEP_4: Step = (
    """
    CREATE TABLE blueprints (
        number INTEGER PRIMARY KEY,
        lineage BLOB NOT NULL CHECK (length(lineage) = 16),
        revision INTEGER NOT NULL CHECK (revision >= 0),
        blueprint_id BLOB NOT NULL CHECK (length(blueprint_id) = 32),
        at_ns INTEGER NOT NULL,
        allowed TEXT
    )""",
    *(
        f"""
        CREATE TRIGGER blueprints_no_{event.lower()} BEFORE {event} ON blueprints
        BEGIN SELECT RAISE(ABORT, 'blueprints are append-only'); END"""
        for event in ("UPDATE", "DELETE")
    ),
)

# The documents of routes of shards, in canonical CBOR, by the digest that receipts name them by.
_STEP_5: Step = (
    """
    CREATE TABLE routes (
        digest BLOB PRIMARY KEY CHECK (length(digest) = 32),
        document BLOB NOT NULL
    ) WITHOUT ROWID""",
)

STEPS: tuple[Step, ...] = (_STEP_1, _STEP_2, _STEP_3, _STEP_4, _STEP_5)
GRANTS_SINCE = 2  # the format that first had totals
RECIPES_SINCE = 3  # the one that first had recipes
BLUEPRINTS_SINCE = 4  # the one that first had blueprints
ROUTES_SINCE = 5


def wal_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def connect(path: Path, *, mode: str, immutable: bool = False) -> sqlite3.Connection:
    """A connection in SQLite's URI `mode` (`rw`, `ro`) that may be handed between threads and starts no transaction by
    itself."""
    uri = f"{path.as_uri()}?mode={mode}" + ("&immutable=1" if immutable else "")
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def check_format(db: sqlite3.Connection, path: Path, *, steps: Sequence[Step] = STEPS) -> int:
    """The file's format version, 0 for a file without any content. Raises LedgerVersion for a newer one, LedgerCorrupt
    for a file that is no ledger."""
    application = pragma(db, "application_id")
    version = pragma(db, "user_version")
    if application != APPLICATION_ID:
        empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        # to SQLite a file shorter than its own header is an empty database
        if application == 0 and version == 0 and empty and not 0 < path.stat().st_size < _HEADER_BYTES:
            return 0
        raise LedgerCorrupt(f"{path}: is not a ledger (application id {application:#x}, expected {APPLICATION_ID:#x})")
    if version > len(steps):
        raise LedgerVersion(f"ledger {path}: format {version} is newer than this program's {len(steps)}")
    return version


def migrate(db: sqlite3.Connection, version: int, *, steps: Sequence[Step] = STEPS) -> None:
    """Take the file from `version` to the current format, each step whole or not at all."""
    for number, step in enumerate(steps[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in step:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
            db.execute("COMMIT")
        except BaseException:
            rollback(db)
            raise


def pragma(db: sqlite3.Connection, name: str) -> int:
    value = db.execute(f"PRAGMA {name}").fetchone()[0]
    return int(value)


def rollback(db: sqlite3.Connection) -> None:
    """End the transaction, if SQLite has not ended it itself already."""
    if db.in_transaction:
        db.execute("ROLLBACK")


# Primary result codes, https://sqlite.org/rescode.html
_UNWRITABLE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_READONLY: "the file is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_NOMEM: "out of memory",
}
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# What a fault of SQLite comes as: its message may quote a damaged schema, and Python raises the second where that is no
# UTF-8.
FAULTS = (sqlite3.Error, UnicodeDecodeError)


def primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> LedgerError:
    """The LedgerError that a fault of SQLite is."""
    if isinstance(error, UnicodeDecodeError):
        return LedgerCorrupt(f"ledger {path}: damaged (what SQLite says of it is not UTF-8)")
    code = primary_code(error)
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:  # its index cannot be made, also to read
        code = sqlite3.SQLITE_FULL
    if code in _UNWRITABLE:
        return LedgerUnwritable(f"ledger {path}: {_UNWRITABLE[code]} ({error})")
    if code in _LOCKED:
        return LedgerLocked(f"ledger {path}: another process holds the write lock ({error})")
    if code in _CORRUPT:
        return LedgerCorrupt(f"ledger {path}: damaged ({error})")
    return LedgerError(f"ledger {path}: {error}")
