"""Reading: beside a gateway, after one that died, from read-only media; backups."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mesh.errors import LedgerCorrupt, LedgerError, LedgerUnwritable
from mesh.ledger import Ledger, LedgerReader

NOBODY = 65534


def test_receipts_are_paged_from_either_end(path, maker, monkeypatch):
    monkeypatch.setattr("mesh.ledger.reader.PAGE_RECEIPTS", 3)
    maker.fill(path, 10)
    with LedgerReader.open(path) as reader:

        def seqs(**how) -> list[int]:
            return [e.seq for e in reader.receipts(**how)]

        assert seqs() == list(range(10))
        assert seqs(newest_first=True) == list(range(9, -1, -1))
        assert seqs(after_seq=4) == [5, 6, 7, 8, 9]
        assert seqs(after_seq=4, newest_first=True) == [9, 8, 7, 6, 5]
        assert seqs(limit=4) == [0, 1, 2, 3]
        assert seqs(limit=4, newest_first=True) == [9, 8, 7, 6]
        assert seqs(after_seq=7, limit=100) == [8, 9]
        assert seqs(after_seq=9) == seqs(limit=0) == []


def test_receipts_end_with_those_there_were_at_the_start(ledger, maker):
    for n in range(3):
        maker.serve(ledger, n)
    report = ledger.reader.receipts()
    seen = [next(report).seq]
    maker.serve(ledger, 3)
    assert seen + [e.seq for e in report] == [0, 1, 2]


def test_receipt_is_found_by_its_ids(path, maker):
    sealed = maker.fill(path, 3)
    with LedgerReader.open(path) as reader:
        entry = reader.by_serve(maker.serve_id(1))
        assert entry == reader.by_receipt(sealed[1].id)
        assert (entry.seq, entry.receipt_id, entry.caller) == (1, sealed[1].id, "caller")
        assert reader.by_serve(b"\x00" * 16) is None
        assert reader.by_receipt(b"\x00" * 32) is None


def test_empty_ledger_reads_as_empty(path, maker):
    maker.fill(path, 0)
    with LedgerReader.open(path) as reader:
        assert (reader.count(), reader.head(), list(reader.receipts())) == (0, None, [])
        assert reader.steward() == maker.steward


@pytest.mark.parametrize("name", ["missing", ".", "empty"])
def test_reader_of_no_ledger_is_refused(tmp_path, name):
    (tmp_path / "empty").touch()
    with pytest.raises(LedgerError, match=r"no ledger|is not a ledger"):
        LedgerReader.open(tmp_path / name)


@pytest.mark.parametrize(("column", "read"), [("count", "count"), ("head", "head"), ("steward", "steward")])
def test_a_value_that_no_ledger_has_there_is_damage(path, maker, column, read):
    maker.fill(path, 2)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE meta SET {column} = 0.5")
    with pytest.raises(LedgerCorrupt, match=f"damaged .select {column}"), LedgerReader.open(path) as reader:
        getattr(reader, read)()


def test_a_name_in_the_schema_that_is_no_text_is_damage(path, maker):
    maker.fill(path, 2)
    data = path.read_bytes()
    at = data.index(b"CREATE TABLE meta")
    path.write_bytes(data[:at] + b"CREATE TABLE \xff\xfe\xfda" + data[at + 17 :])
    for opened in (LedgerReader.open, lambda path: maker.fill(path, 1)):
        with pytest.raises(LedgerCorrupt, match="damaged"):
            opened(path)


def test_reader_sees_what_was_sealed_just_now(ledger, maker, path):
    with LedgerReader.open(path) as reader:
        for n in range(5):
            made = maker.serve(ledger, n)
            assert (reader.count(), reader.head()) == (n + 1, made.id)


def test_reader_serves_many_threads_and_then_closes(path, maker):
    maker.fill(path, 40)
    reader = LedgerReader.open(path)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.extend(len(list(reader.receipts())) for _ in range(5))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [40] * 40
    reader.close()
    reader.close()
    with pytest.raises(LedgerError, match="closed"):
        reader.count()


def killed_with_a_log(path: Path, maker) -> None:
    """A ledger of 3 receipts, the last of which are only in the log that a killed owner left."""
    maker.fill(path, 1)
    with Ledger.open(path, steward=maker.steward) as ledger:
        for n in (1, 2):
            maker.serve(ledger, n)
        files = [path, path.with_name("ledger.db-wal"), path.with_name("ledger.db-shm")]
        left = path.parent / "left"
        left.mkdir()
        subprocess.run(["cp", *files, left], check=True)
    for file in left.iterdir():
        file.replace(path.parent / file.name)
    left.rmdir()


def test_reader_recovers_the_log_of_a_dead_gateway(path, maker):
    killed_with_a_log(path, maker)
    with LedgerReader.open(path) as reader:
        assert [e.seq for e in reader.receipts()] == [0, 1, 2]
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.reader.count() == 3


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """As a user who may read the directory and its files and change nothing."""
    files = [directory, *directory.iterdir()]
    for file in files:
        file.chmod(0o555 if file.is_dir() else 0o444)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o755)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that another user can reach, which pytest's own are not."""
    directory = Path(tempfile.mkdtemp(prefix="mesh-ledger-"))
    directory.chmod(0o755)
    yield directory / "state"
    shutil.rmtree(directory)


def test_read_only_directory_of_a_closed_ledger_is_read(open_dir, maker):
    maker.fill(open_dir / "ledger.db", 3)
    with read_only(open_dir), LedgerReader.open(open_dir / "ledger.db") as reader:
        assert [e.seq for e in reader.receipts()] == [0, 1, 2]
        assert reader.count() == 3
    assert sorted(p.name for p in open_dir.iterdir()) == ["ledger.db", "ledger.db.lock"]


def test_read_only_directory_with_a_log_is_read_if_sqlite_left_its_index(open_dir, maker):
    killed_with_a_log(open_dir / "ledger.db", maker)
    with read_only(open_dir), LedgerReader.open(open_dir / "ledger.db") as reader:
        assert [e.seq for e in reader.receipts()] == [0, 1, 2]


def test_read_only_directory_with_a_log_alone_says_what_to_do(open_dir, maker):
    killed_with_a_log(open_dir / "ledger.db", maker)
    (open_dir / "ledger.db-shm").unlink()
    with read_only(open_dir), pytest.raises(LedgerError, match="copy both files to a writable directory"):
        LedgerReader.open(open_dir / "ledger.db")


def test_file_that_may_not_be_read_is_an_error_of_its_own(open_dir, maker):
    maker.fill(open_dir / "ledger.db", 1)
    with read_only(open_dir):
        if os.geteuid() == NOBODY:
            os.seteuid(0)
            (open_dir / "ledger.db").chmod(0o000)
            os.seteuid(NOBODY)
        else:
            (open_dir / "ledger.db").chmod(0o000)
        with pytest.raises(LedgerUnwritable, match="cannot be opened"):
            LedgerReader.open(open_dir / "ledger.db")


def test_backup_is_a_whole_ledger_of_its_own(ledger, maker, tmp_path):
    for n in range(5):
        maker.serve(ledger, n)
    target = tmp_path / "backup.db"
    ledger.reader.backup(target)
    maker.serve(ledger, 5)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with LedgerReader.open(target) as reader:
        assert [e.seq for e in reader.receipts()] == [0, 1, 2, 3, 4]
    assert [p.name for p in tmp_path.glob("backup*")] == ["backup.db"]
    ledger.close()
    with Ledger.open(target, steward=maker.steward) as restored:
        assert restored.moved
        maker.serve(restored, 5)


def test_backup_never_overwrites(path, maker, tmp_path):
    maker.fill(path, 1)
    target = tmp_path / "backup.db"
    target.write_bytes(b"precious")
    with LedgerReader.open(path) as reader:
        for each in (target, path):
            with pytest.raises(LedgerUnwritable, match="exists"):
                reader.backup(each)
        with pytest.raises(LedgerUnwritable, match="No such file"):
            reader.backup(tmp_path / "nowhere" / "backup.db")
    assert target.read_bytes() == b"precious"


def test_backup_while_others_write_is_consistent(ledger, maker, tmp_path):
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            maker.serve(ledger, n, thread=1)
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(5):
            ledger.reader.backup(tmp_path / f"{n}.db")
    finally:
        stop.set()
        writer.join()
    ledger.close()
    for n in range(5):
        with Ledger.open(tmp_path / f"{n}.db", steward=maker.steward) as copy:
            assert copy.open_intents() == [] or len(copy.open_intents()) == 1


def test_reader_imports_no_writer_into_other_processes(path, maker):
    maker.fill(path, 2)
    code = (
        "import sys, pathlib; from mesh.ledger import LedgerReader;"
        "print(LedgerReader.open(pathlib.Path(sys.argv[1])).count())"
    )
    with Ledger.open(path, steward=maker.steward):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    assert done.stdout == b"2\n"
