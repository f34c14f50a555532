"""Starts under blueprints: a row for each, kept as they were."""

from __future__ import annotations

import sqlite3

import pytest

from mesh.blueprint.verification import Served
from mesh.ledger import Ledger, LedgerReader, ServedUnder
from mesh.ledger.format import STEPS, connect, migrate

LINEAGE = b"l" * 16


def start(revision: int, name: bytes = b"b", allowed: str | None = None) -> ServedUnder:
    return ServedUnder(LINEAGE, revision, name * 32, 1_000, allowed)


def test_highest_revision_is_that_of_all_starts(path, maker) -> None:
    starts = [start(2), start(5), start(3, allowed="lower-revision"), start(5, b"c", "other-body")]
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.reader.highest_blueprint(LINEAGE) is None
        for one in starts:
            ledger.serve_under(one).result()
        # of two that were served as one revision the later one
        assert ledger.reader.highest_blueprint(LINEAGE) == Served(5, b"c" * 32)
        assert ledger.reader.highest_blueprint(b"o" * 16) is None
    with LedgerReader.open(path) as reader:
        assert reader.blueprints() == starts


def test_largest_revision_fits(ledger) -> None:
    ledger.serve_under(start(2**63 - 1)).result()
    assert ledger.reader.highest_blueprint(LINEAGE) == Served(2**63 - 1, b"b" * 32)


@pytest.mark.parametrize("sql", ["UPDATE blueprints SET revision = 0", "DELETE FROM blueprints"])
def test_start_is_never_changed(ledger, path, sql) -> None:
    ledger.serve_under(start(1)).result()
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(sql)
    db.close()


def test_ledger_of_an_older_format_learns_blueprints(path, maker) -> None:
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    db = connect(path, mode="rw")
    migrate(db, 0, steps=STEPS[:3])
    db.execute("INSERT INTO meta VALUES (1, ?, 0, NULL, 0, NULL)", (maker.steward,))
    db.close()
    with LedgerReader.open(path) as reader:
        assert reader.blueprints() == []
        assert reader.highest_blueprint(LINEAGE) is None
    with Ledger.open(path, steward=maker.steward) as ledger:
        ledger.serve_under(start(1)).result()
        assert ledger.reader.blueprints() == [start(1)]
