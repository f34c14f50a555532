"""What a crash leaves: a killed writer, a torn log, garbage at its end."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.ledger import Ledger, check_sequence
from mesh.ledger.torn import torn_tail
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId

FRAME = 24 + 4096  # SQLite's log: a header of 32 bytes, then frames of a header and a page
WRITER = Path(__file__).with_name("writer.py")


def check_whole(ledger: Ledger, steward: bytes) -> list[ContentId]:
    """Every receipt is signed, in its place and chained; their ids."""
    sealed = [verify(entry.envelope, RECEIPT_TYPE, {steward}) for entry in ledger.reader.receipts()]
    check_sequence((s.value, s.id) for s in sealed)
    assert len(sealed) == ledger.reader.count()
    return [s.id for s in sealed]


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.deep)])
def test_killed_writer_loses_nothing_it_acknowledged(path, maker, rounds):
    rng = random.Random(11)
    acknowledged: list[ContentId] = []
    for round_ in range(rounds):
        with subprocess.Popen(
            [sys.executable, WRITER, path, maker.key.seed.hex(), str(round_)], stdout=subprocess.PIPE
        ) as writer:
            told = [bytes.fromhex(writer.stdout.readline().decode()) for _ in range(rng.randrange(1, 120))]
            writer.kill()
            # what it said before it died, the last line perhaps half
            told += [bytes.fromhex(line.decode()) for line in writer.stdout.read().split(b"\n")[:-1]]
        acknowledged += map(ContentId, told)
        with Ledger.open(path, steward=maker.steward) as ledger:
            ids = check_whole(ledger, maker.steward)
            assert set(acknowledged) <= set(ids)
            for left in ledger.open_intents():
                ledger.seal(left.serve_id, maker.sealing(left.serve_id)).result()
            assert ledger.open_intents() == []
            check_whole(ledger, maker.steward)


@pytest.fixture
def eleventh(path, maker, tmp_path) -> tuple[bytes, bytes, int]:
    """A ledger of 10 receipts whose log was not merged, and the same log with the 11th: file, log, where it starts."""
    with Ledger.open(path, steward=maker.steward) as ledger:
        for n in range(10):
            maker.serve(ledger, n)
        ledger.open_intent(maker.intent(maker.serve_id(10))).result()
        start = ledger.wal_bytes
        ledger.seal(maker.serve_id(10), maker.sealing(maker.serve_id(10))).result()
        # by another process: closing a descriptor of the file in this one would drop SQLite's locks on it
        subprocess.run(["cp", path, path.with_name("ledger.db-wal"), tmp_path], check=True)
    return (tmp_path / "ledger.db").read_bytes(), (tmp_path / "ledger.db-wal").read_bytes(), start


def restore(path: Path, file: bytes, log: bytes) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(mode=0o700)
    path.write_bytes(file)
    path.with_name("ledger.db-wal").write_bytes(log)


def offsets(start: int, end: int) -> list[int]:
    borders = range(start, end + 1, FRAME)
    near = {b + d for b in borders for d in (-1, 0, 1, 8, 23, 24, 25)}
    return sorted(o for o in near | set(range(start, end, 509)) if start <= o <= end)


@pytest.mark.parametrize("tail", ["nothing", "garbage", "zeros"])
def test_torn_log_opens_with_ten_or_eleven_whole_receipts(path, maker, eleventh, tail):
    file, log, start = eleventh
    assert (len(log) - start) % FRAME == 0
    rng = random.Random(5)
    counts = set()
    for cut in offsets(start, len(log)) if tail == "nothing" else offsets(start, len(log))[::3]:
        rest = {"nothing": b"", "garbage": rng.randbytes(len(log) - cut), "zeros": bytes(len(log) - cut)}[tail]
        restore(path, file, log[:cut] + rest)
        with Ledger.open(path, steward=maker.steward) as ledger:
            count = len(check_whole(ledger, maker.steward))
            assert count == (11 if cut == len(log) else 10)
            # the serve that was cut off is there to be sealed, and the next one follows
            for left in ledger.open_intents():
                ledger.seal(left.serve_id, maker.sealing(left.serve_id)).result()
            maker.serve(ledger, 100)
            assert len(check_whole(ledger, maker.steward)) == 12
            torn = (log[start:cut] + rest) if count == 10 else b""
            if not any(torn):
                assert ledger.torn is None
            else:
                assert ledger.torn.read_bytes() == torn
                note = ledger.torn.with_name(ledger.torn.name + ".txt").read_text()
                assert note.startswith(f"{len(torn)} bytes from offset {start} of ledger.db-wal")
        counts.add(count)
    assert counts == {10, 11}


def test_torn_bytes_survive_another_crash(path, maker, eleventh):
    file, log, start = eleventh
    restore(path, file, log[:-7])
    killed = (
        "import os, sys, pathlib; from mesh.ledger import Ledger;"
        "Ledger.open(pathlib.Path(sys.argv[1]), steward=bytes.fromhex(sys.argv[2])); os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", killed, path, maker.steward.hex()], check=False)
        (torn,) = path.parent.glob("*.torn-????????????????")
        assert torn.read_bytes() == log[start:-7]
        assert torn.stat().st_mode & 0o777 == 0o600
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert len(check_whole(ledger, maker.steward)) == 10
    assert torn.read_bytes() == log[start:-7]


def test_torn_head_of_the_log_is_set_aside(path, maker, eleventh):
    _, log, _ = eleventh
    with Ledger.open(path, steward=maker.steward):
        pass
    merged = path.read_bytes()  # closed: everything is in the file, the log starts anew
    restore(path, merged, log[:20])
    with Ledger.open(path, steward=maker.steward) as ledger:
        assert len(check_whole(ledger, maker.steward)) == 11
        assert ledger.torn.read_bytes() == log[:20]


def test_log_of_earlier_rounds_is_not_taken_for_torn(path, maker, tmp_path):
    with Ledger.open(path, steward=maker.steward) as ledger:
        for n in range(30):
            maker.serve(ledger, n)
        other = os.fspath(tmp_path / "copy")
        merge = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
            "db.execute('PRAGMA wal_checkpoint(RESTART)'); db.close()"
        )
        subprocess.run([sys.executable, "-c", merge, path], check=True)
        before = ledger.wal_bytes
        maker.serve(ledger, 30)  # written over the beginning of the log
        assert ledger.wal_bytes == before
        subprocess.run(["cp", "-r", path.parent, other], check=True)
    with Ledger.open(tmp_path / "copy" / "ledger.db", steward=maker.steward) as ledger:
        assert len(check_whole(ledger, maker.steward)) == 31
        assert ledger.torn is None


def test_torn_tail_of_an_empty_or_zeroed_log_is_none():
    assert torn_tail(b"", frames=0, page_bytes=4096) == b""
    assert torn_tail(bytes(5000), frames=0, page_bytes=4096) == b""
    assert torn_tail(b"\x01" * 31, frames=0, page_bytes=4096) == b"\x01" * 31
