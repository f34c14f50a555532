"""A disk that is full or fails, a log that grows, a lock that cannot be had: the ledger stops, and goes on."""

from __future__ import annotations

import logging
import resource
import sqlite3
from contextlib import contextmanager

import pytest

from mesh.errors import LedgerLocked, LedgerUnwritable
from mesh.ledger import Kept, Ledger
from mesh.ledger.format import translate
from mesh.schema.envelope import RECEIPT_TYPE, verify


def on_writer(ledger: Ledger, sql: str) -> None:
    """Run a pragma of the writer's own connection, on its thread."""
    ledger._group.submit(lambda transaction: transaction.db.execute(sql).fetchall()).result()


def page_count(ledger: Ledger) -> int:
    return ledger._group.submit(lambda t: t.db.execute("PRAGMA page_count").fetchone()[0]).result()


def check_whole(ledger: Ledger, steward: bytes, expected: list[bytes]) -> None:
    entries = list(ledger.reader.receipts())
    assert [e.receipt_id for e in entries] == expected
    assert [verify(e.envelope, RECEIPT_TYPE, {steward}).value.seq for e in entries] == list(range(len(entries)))


def test_full_disk_refuses_before_and_after_generation_and_goes_on(path, maker):
    acknowledged: list[bytes] = []
    with Ledger.open(path, steward=maker.steward) as ledger:
        acknowledged.append(maker.serve(ledger, 0).id)
        on_writer(ledger, f"PRAGMA max_page_count = {page_count(ledger) + 4}")
        full = None
        for number in range(1, 1000):
            try:
                acknowledged.append(maker.serve(ledger, number).id)
            except LedgerUnwritable as e:
                full = e
                break
        assert "the disk is full" in str(full)
        assert len(acknowledged) > 1
        # full in the intent: nothing of that serve is there, and no engine was started for it
        left = [i.serve_id for i in ledger.open_intents()]
        on_writer(ledger, f"PRAGMA max_page_count = {page_count(ledger) + 40}")
        check_whole(ledger, maker.steward, acknowledged)
        # full in the seal: the serve is not acknowledged, its intent stays and can be sealed once there is room
        serve_id = maker.serve_id(1000)
        ledger.open_intent(maker.intent(serve_id)).result()
        kept = Kept(b"x" * 1_000_000, b"", None, 1)
        with pytest.raises(LedgerUnwritable, match="the disk is full"):
            ledger.seal(serve_id, maker.sealing(serve_id), kept).result()
        check_whole(ledger, maker.steward, acknowledged)
        assert [i.serve_id for i in ledger.open_intents()] == [*left, serve_id]
        on_writer(ledger, "PRAGMA max_page_count = 1000000")
        acknowledged.append(ledger.seal(serve_id, maker.sealing(serve_id), kept).result().id)
        acknowledged.append(maker.serve(ledger, 1001).id)
        check_whole(ledger, maker.steward, acknowledged)
    with Ledger.open(path, steward=maker.steward) as ledger:
        check_whole(ledger, maker.steward, acknowledged)


def test_full_disk_fails_every_serve_of_the_transaction(ledger, maker):
    on_writer(ledger, f"PRAGMA max_page_count = {page_count(ledger)}")
    futures = [ledger.open_intent(maker.intent(maker.serve_id(n), settings=b"%0999d" % n)) for n in range(200)]
    errors = [f.exception() for f in futures]
    durable = {i.serve_id for i in ledger.open_intents()}
    assert {maker.serve_id(n) for n, e in enumerate(errors) if e is None} == durable
    assert {type(e) for e in errors if e} == {LedgerUnwritable}
    assert len({id(e) for e in errors if e}) == sum(e is not None for e in errors)


@contextmanager
def file_size_limit(limit: int):
    """The kernel refuses to let any file of this process grow beyond `limit` bytes: writes fail in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failing_write_refuses_and_goes_on(path, maker):
    with Ledger.open(path, steward=maker.steward) as ledger:
        acknowledged = [maker.serve(ledger, n).id for n in range(3)]
        ledger.open_intent(maker.intent(maker.serve_id(3))).result()
        for extra in (0, 100, 5000, 9000):  # the commit stops at its start, in a header, in a page
            with (
                file_size_limit(ledger.wal_bytes + extra),
                pytest.raises(LedgerUnwritable),
            ):
                ledger.seal(maker.serve_id(3), maker.sealing(maker.serve_id(3))).result()
            check_whole(ledger, maker.steward, acknowledged)
        acknowledged.append(ledger.seal(maker.serve_id(3), maker.sealing(maker.serve_id(3))).result().id)
        acknowledged.append(maker.serve(ledger, 4).id)
        check_whole(ledger, maker.steward, acknowledged)
    with Ledger.open(path, steward=maker.steward) as ledger:
        check_whole(ledger, maker.steward, acknowledged)


def test_read_only_ledger_is_unwritable(ledger, maker):
    on_writer(ledger, "PRAGMA query_only = ON")
    with pytest.raises(LedgerUnwritable, match="read-only"):
        maker.serve(ledger, 0)


def test_file_taken_away_is_noticed_before_anything_is_acknowledged(path, maker):
    with Ledger.open(path, steward=maker.steward) as ledger:
        maker.serve(ledger, 0)
        aside = path.with_name("aside.db")
        path.rename(aside)
        with pytest.raises(LedgerUnwritable, match="moved, replaced or deleted"):
            maker.serve(ledger, 1)
        aside.rename(path)
        maker.serve(ledger, 1)
        assert ledger.reader.count() == 2


def test_lock_held_by_another_program_refuses_in_time(ledger, maker, path):
    on_writer(ledger, "PRAGMA busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerLocked, match="another process holds the write lock"):
        ledger.open_intent(maker.intent(maker.serve_id(0))).result()
    other.execute("ROLLBACK")
    other.close()
    maker.serve(ledger, 0)


def test_log_that_a_reader_holds_open_raises_an_alarm_and_shrinks_after(path, maker, caplog):
    limit = 300_000
    with Ledger.open(path, steward=maker.steward, wal_limit_bytes=limit) as ledger:
        on_writer(ledger, "PRAGMA wal_autocheckpoint = 20")
        maker.serve(ledger, 0)
        pinned = sqlite3.connect(path, isolation_level=None)
        pinned.execute("BEGIN")
        assert pinned.execute("SELECT count FROM meta").fetchone() == (1,)
        with caplog.at_level(logging.WARNING, logger="mesh.ledger"):
            for n in range(1, 120):
                maker.serve(ledger, n, kept=Kept(b"x" * 2048, b"", None, 1))
        held = ledger.wal_bytes
        assert held > 4 * 1024 * 1024 > limit
        alarms = [r for r in caplog.records if "the log is held open" in r.message]
        assert 1 <= len(alarms) < 6  # each at twice the size of the one before
        pinned.execute("ROLLBACK")
        pinned.close()
        for n in range(120, 600):
            maker.serve(ledger, n)
        assert ledger.wal_bytes <= 4 * 1024 * 1024
        assert ledger.reader.count() == 600


def test_purge_while_a_reader_holds_the_log_is_finished_later(path, maker):
    secret = b"kept for a while"
    with Ledger.open(path, steward=maker.steward) as ledger:
        maker.serve(ledger, 0, kept=Kept(secret, b"", None, 1))
        pinned = sqlite3.connect(path, isolation_level=None)
        pinned.execute("BEGIN")
        assert pinned.execute("SELECT count FROM meta").fetchone() == (1,)
        assert ledger.purge_kept(1).result() == 1
        log = path.with_name("ledger.db-wal")
        assert secret in log.read_bytes()
        pinned.execute("ROLLBACK")
        pinned.close()
        ledger._retry_at = 0.0  # the wait between two tries is over
        assert ledger.purge_kept(1).result() == 0
        assert log.stat().st_size == 0


def test_half_read_report_holds_nothing_open(ledger, maker, path):
    for n in range(600):
        serve_id = maker.serve_id(n)
        ledger.open_intent(maker.intent(serve_id))
        ledger.seal(serve_id, maker.sealing(serve_id))
    maker.serve(ledger, 600)
    report = ledger.reader.receipts()
    assert next(report).seq == 0
    other = sqlite3.connect(path, isolation_level=None)
    busy = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    other.close()
    assert busy == 0
    assert ledger.wal_bytes == 0
    assert [e.seq for e in report] == list(range(1, 601))


def test_disk_too_full_for_the_index_of_the_log_is_called_full(path):
    """SQLite calls that an I/O error; who reads a ledger on a full disk meets it."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert "the disk is full (disk I/O error)" in str(translate(error, path))
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
    assert "the disk failed" in str(translate(error, path))
