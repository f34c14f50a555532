"""One transaction of the ledger's file, and the rows in it that wait to be written together.

SQLite's binding gives the interpreter away at every statement and has to win it back from a busy event loop, which
costs many times what the statement does. So the two rows that every serve has are gathered and written many to a
statement: who reads or writes anything else asks for `db`, and finds them there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from mesh.errors import LedgerError

_AT_ONCE: Final = (32, 16, 8, 4, 2, 1)  # rows of a statement: few spellings, which SQLite keeps compiled

Row = tuple[Any, ...]


@dataclass(slots=True)
class Transaction:
    """An immediate transaction, and the place of the next receipt in it. `known` are the settings documents that the
    file surely has, `open` the serves whose intent it surely has, under no grant and not sealed. Where it does not
    `gather`, each row is written when it comes."""

    _db: sqlite3.Connection
    count: int
    head: bytes | None
    known: set[bytes] = field(default_factory=set)
    open: set[bytes] = field(default_factory=set)
    gather: bool = True
    _met: set[bytes] = field(default_factory=set)
    _opened: set[bytes] = field(default_factory=set)
    _sealed: set[bytes] = field(default_factory=set)
    _intents: list[Row] = field(default_factory=list)
    _receipts: list[Row] = field(default_factory=list)

    @property
    def db(self) -> sqlite3.Connection:
        """With all that was gathered in it. Raises sqlite3.Error, and LedgerError for a seal without its intent."""
        self.flush()
        return self._db

    def add_settings(self, digest: bytes, document: bytes) -> None:
        if digest not in self.known and digest not in self._met:
            self._db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (digest, document))
            self._met.add(digest)

    def add_intent(self, serve_id: bytes, row: Row, *, granted: bool) -> None:
        self._intents.append(row)
        if not self.gather:  # it may be taken back alone, and is no surety
            self.flush()
        elif not granted:
            self._opened.add(serve_id)

    def may_gather(self, serve_id: bytes) -> bool:
        """Whether a receipt can come in place of this serve's intent without a look into the file."""
        return self.gather and (serve_id in self.open or serve_id in self._opened) and serve_id not in self._sealed

    def sealed(self, serve_id: bytes) -> None:
        """Its intent is gone, or about to be."""
        self._sealed.add(serve_id)

    def add_receipt(self, row: Row) -> None:
        """`row`: number, receipt id, serve id, envelope. The rest is in the intent, in whose place the receipt comes:
        one that is under no grant."""
        self._receipts.append(row)

    def flush(self) -> None:
        intents, self._intents = self._intents, []
        for rows in _parts(intents):
            self._db.execute(_intents_sql(len(rows)), _flat(rows))
        receipts, self._receipts = self._receipts, []
        for rows in _parts(receipts):
            if self._db.execute(_receipts_sql(len(rows)), _flat(rows)).rowcount != len(rows):
                raise LedgerError("a serve of these has no open intent to seal, or one under a grant")
            self._db.execute(_sealed_sql(len(rows)), [row[2] for row in rows])

    def committed(self) -> None:
        """What it wrote is in the file."""
        self.known |= self._met
        self.open |= self._opened
        self.open -= self._sealed


def _parts(rows: Sequence[Row]) -> list[Sequence[Row]]:
    parts, at = [], 0
    for size in _AT_ONCE:
        while len(rows) - at >= size:
            parts.append(rows[at : at + size])
            at += size
    return parts


def _flat(rows: Sequence[Row]) -> list[Any]:
    return [value for row in rows for value in row]


def _values(columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


@lru_cache
def _intents_sql(rows: int) -> str:
    return f"INSERT INTO intents {_values(9, rows)}"


@lru_cache
def _receipts_sql(rows: int) -> str:
    # each in the order of its number, which the tables hold them to
    return (
        "INSERT INTO receipts SELECT v.column1, v.column2, v.column3, i.caller, v.column4, i.request"  # noqa: S608
        f" FROM ({_values(4, rows)}) AS v CROSS JOIN intents AS i"
        " ON i.serve_id = v.column3 AND i.grant_id IS NULL"
    )


@lru_cache
def _sealed_sql(rows: int) -> str:
    return f"DELETE FROM intents WHERE serve_id IN ({', '.join('?' * rows)})"  # noqa: S608
