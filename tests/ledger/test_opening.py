"""Opening a ledger: ownership, format, permissions, and everything that must be noticed before the first write."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import LedgerCorrupt, LedgerError, LedgerLocked, LedgerUnwritable, LedgerVersion
from mesh.ledger import Ledger, LedgerReader
from mesh.ledger.format import STEPS, check_format, connect, migrate
from mesh.schema.envelope import SigningKey


def tamper(path: Path, *statements: str) -> None:
    """Change a closed ledger as somebody could who has the file and knows SQLite."""
    db = sqlite3.connect(path, isolation_level=None)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    db.close()


def refused(path: Path, maker, error: type[LedgerError], match: str) -> None:
    with pytest.raises(error, match=match):
        Ledger.open(path, steward=maker.steward)
    assert not list(path.parent.glob("*.torn-*"))


def test_files_are_for_the_owner_alone(ledger, maker, path):
    maker.serve(ledger, 0)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert modes == {f"ledger.db{suffix}": 0o600 for suffix in ("", "-wal", "-shm", ".lock")}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_loose_permissions_are_tightened(path, maker):
    maker.fill(path, 1)
    path.chmod(0o644)
    maker_again = Ledger.open(path, steward=maker.steward)
    maker_again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_second_owner_is_locked_out(ledger, maker, path):
    with pytest.raises(LedgerLocked, match=f"held by process {os.getpid()}"):
        Ledger.open(path, steward=maker.steward)
    link = path.parent / "other-name.db"
    link.symlink_to(path)
    with pytest.raises(LedgerLocked):
        Ledger.open(link, steward=maker.steward)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract unix sockets are Linux's")
def test_copy_of_the_directory_cannot_run_beside_the_original(path, maker, tmp_path):
    maker.fill(path, 2)
    shutil.copytree(path.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "ledger.db"
    with Ledger.open(path, steward=maker.steward) as original:
        with pytest.raises(LedgerLocked, match="from a copy of the state directory"):
            Ledger.open(copy, steward=maker.steward)
        maker.serve(original, 2)
    with Ledger.open(copy, steward=maker.steward) as ledger:
        assert ledger.moved


def test_lock_dies_with_its_process(path, maker):
    code = (
        "import sys, pathlib; from mesh.ledger import Ledger;"
        "l = Ledger.open(pathlib.Path(sys.argv[1]), steward=bytes.fromhex(sys.argv[2])); print('open', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), maker.steward.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(LedgerLocked, match=f"held by process {owner.pid}"):
            Ledger.open(path, steward=maker.steward)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    Ledger.open(path, steward=maker.steward).close()


def test_failed_open_lets_the_lock_go(path, maker):
    maker.fill(path, 1)
    other = SigningKey(os.urandom(32)).public
    for _ in range(2):
        with pytest.raises(LedgerError, match="belongs to ed25519"):
            Ledger.open(path, steward=other)
    Ledger.open(path, steward=maker.steward).close()


def test_moved_is_noticed_once(path, maker, tmp_path):
    maker.fill(path, 1)
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert not ledger.moved
    copied = tmp_path / "new.db"
    shutil.copy(path, copied)
    copied.replace(path)
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert ledger.moved
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert not ledger.moved


def test_newer_format_is_refused_and_left_alone(path, maker):
    maker.fill(path, 1)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    refused(path, maker, LedgerVersion, f"format 99 is newer than this program's {len(STEPS)}")
    with pytest.raises(LedgerVersion):
        LedgerReader.open(path)
    assert path.read_bytes() == before


def test_migration_runs_the_missing_steps_in_order(path, maker):
    maker.fill(path, 2)
    steps = (*STEPS, ("CREATE TABLE extra (a)",), ("ALTER TABLE extra ADD COLUMN b", "INSERT INTO extra VALUES (1, 2)"))
    db = connect(path, mode="rw")
    assert check_format(db, path, steps=steps) == len(STEPS)
    migrate(db, len(STEPS), steps=steps)
    assert check_format(db, path, steps=steps) == len(STEPS) + 2
    assert db.execute("SELECT a, b FROM extra").fetchall() == [(1, 2)]
    assert db.execute("SELECT count FROM meta").fetchone() == (2,)
    db.close()


def test_migration_step_that_fails_leaves_the_file_at_the_one_before(path, maker):
    maker.fill(path, 2)
    steps = (*STEPS, ("CREATE TABLE extra (a)",), ("INSERT INTO extra VALUES (1)", "INSERT INTO nowhere VALUES (1)"))
    db = connect(path, mode="rw")
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, len(STEPS), steps=steps)
    assert check_format(db, path, steps=steps) == len(STEPS) + 1
    assert db.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    db.close()


def test_creation_that_was_interrupted_is_finished(path, maker):
    path.parent.mkdir()
    path.touch()
    Ledger.open(path, steward=maker.steward).close()
    tamper(path, "DELETE FROM meta")  # the step is in, the head row is not
    with Ledger.open(path, steward=maker.steward) as ledger:
        maker.serve(ledger, 0)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at as one\n" * 100, b"x"])
def test_file_that_is_no_ledger_is_refused_and_left_alone(path, maker, content):
    path.parent.mkdir()
    path.write_bytes(content)
    refused(path, maker, LedgerError, "is not a ledger")
    with pytest.raises(LedgerError, match="is not a ledger"):
        LedgerReader.open(path)
    assert path.read_bytes() == content


def test_database_of_another_program_is_refused(path, maker):
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    refused(path, maker, LedgerError, "is not a ledger")


def test_ledger_cut_shorter_than_its_checkpoint_is_refused(path, maker):
    ids = [s.id for s in maker.fill(path, 10, checkpoint=True)]
    tamper(path, "DELETE FROM receipts WHERE seq >= 8", f"UPDATE meta SET count = 8, head = x'{ids[7].hex()}'")
    refused(path, maker, LedgerCorrupt, "holds 8 receipts, its last signed checkpoint counts 10")


def test_ledger_with_other_receipts_than_its_checkpoint_is_refused(path, maker, tmp_path):
    maker.fill(path, 3, checkpoint=True)
    other = tmp_path / "other" / "ledger.db"
    with Ledger.open(other, steward=maker.steward) as ledger:
        for n in (7, 8, 9):
            maker.serve(ledger, n)
    checkpoint = sqlite3.connect(path).execute("SELECT count, envelope FROM checkpoints")
    row = checkpoint.fetchone()
    checkpoint.connection.close()
    db = sqlite3.connect(other, isolation_level=None)
    db.execute("INSERT INTO checkpoints (count, envelope) VALUES (?, ?)", row)
    db.close()
    refused(other, maker, LedgerCorrupt, "receipt 2 is b3:.*, its last signed checkpoint says b3:")


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("DELETE FROM receipts WHERE seq = 2", "holds 2 receipts up to seq 1, its head row counts 3"),
        ("DELETE FROM receipts WHERE seq = 1", "holds 2 receipts up to seq 2, its head row counts 3"),
        ("DELETE FROM receipts", "holds 0 receipts up to seq None, its head row counts 3"),
        ("UPDATE meta SET head = zeroblob(32)", "last receipt is b3:.*, head row says b3:0000"),
        ("UPDATE receipts SET envelope = zeroblob(500) WHERE seq = 2", "receipt 2: envelope"),
        (
            "UPDATE receipts SET envelope = (SELECT envelope FROM receipts WHERE seq = 1) WHERE seq = 2",
            "receipt 2 is signed for another place",
        ),
        ("UPDATE receipts SET receipt_id = zeroblob(32) WHERE seq = 1", "receipt 2 is signed for another place"),
        ("UPDATE checkpoints SET envelope = zeroblob(100)", "checkpoint 1: envelope"),
        ("DELETE FROM meta", "its head row is missing"),
    ],
)
def test_ledger_that_contradicts_itself_is_refused(path, maker, statement, match):
    maker.fill(path, 3, checkpoint="checkpoints" in statement)
    tamper(path, statement)
    refused(path, maker, LedgerCorrupt, match)


def test_damaged_pages_are_refused(path, maker):
    maker.fill(path, 50)
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    refused(path, maker, LedgerCorrupt, "damaged")


def test_damaged_schema_that_is_no_text_is_refused(path, maker):
    """SQLite quotes it, and Python cannot read what it says."""
    maker.fill(path, 1)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE receipts", b"CREATE TABL\xc5 receipts"))
    refused(path, maker, LedgerCorrupt, "damaged")
    with pytest.raises(LedgerCorrupt, match="damaged"):
        LedgerReader.open(path)


def test_state_directory_that_cannot_be_made_is_unwritable(tmp_path, maker):
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnwritable, match="state directory"):
        Ledger.open(tmp_path / "file" / "ledger.db", steward=maker.steward)


def test_lock_file_that_is_a_link_is_refused(path, maker, tmp_path):
    path.parent.mkdir()
    (path.parent / "ledger.db.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerUnwritable, match="lock file"):
        Ledger.open(path, steward=maker.steward)
    assert not (tmp_path / "elsewhere").exists()
