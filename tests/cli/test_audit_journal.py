"""The journal of an audit: whole lines, one audit, one writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.cli.audit_journal import Journal
from mesh.errors import UsageError
from tests.replay.test_judged import EACH

ABOUT = {"heads": ["b3:00"], "seed": None}


def written(path: Path) -> None:
    journal = Journal.open(path)
    assert journal.begun() is None
    journal.begin(ABOUT)
    for judged in EACH:
        journal.add(judged)
    journal.close()


def read(path: Path) -> list[object]:
    journal = Journal.open(path)
    try:
        journal.begin(ABOUT)
        return list(journal.judged())
    finally:
        journal.close()


def test_a_journal_gives_back_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path)
    assert read(path) == EACH
    assert path.stat().st_mode & 0o077 == 0


def test_a_journal_that_was_cut_anywhere_goes_on_with_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = read(path)
        assert found == EACH[: len(found)]
        # the first line is written anew where it was torn
        assert len(found) == max(0, data[:size].count(b"\n") - 1)
        assert path.read_bytes().endswith(b"\n")


FULL = """
import resource, sys
from pathlib import Path
from mesh.cli.audit_journal import Journal
journal = Journal.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
try:
    journal.begin({"heads": ["b3:00"], "seed": None})
except OSError as e:
    print(e.filename)
"""


def test_a_disk_that_takes_half_a_line_is_told_by_the_journals_name(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    told = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True)
    assert (told.stdout, path.stat().st_size) == (f"{path}\n", 40)
    written(path)
    assert read(path) == EACH


def test_a_long_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path)
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    assert read(path) == EACH


@pytest.mark.parametrize("change", [{"heads": ["b3:01"]}, {"seed": "00"}, {"more": 1}])
def test_another_audit_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "journal"
    written(path)
    journal = Journal.open(path)
    with pytest.raises(UsageError, match=f"begun by another audit: {next(iter(change))} was"):
        journal.begin(ABOUT | change)
    journal.close()
    assert read(path) == EACH


@pytest.mark.parametrize("data", [b"{}\n", b"[]\n", b"\xff\n", b'{"format": "other"}\n', b"1\n", b"x", b'{"format"x'])
def test_a_file_that_is_none_is_refused_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        read(path)
    assert path.read_bytes() == data


def test_a_line_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (b"{}\n", b"nonsense\n", b"[]\n"):
        path.write_bytes(b"".join([*lines[:3], broken, *lines[4:]]))
        with pytest.raises(UsageError, match="line 4"):
            read(path)


def test_two_audits_do_not_write_one_journal(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal")
    with pytest.raises(UsageError, match="another audit is writing it"):
        Journal.open(tmp_path / "journal")
    journal.close()
    Journal.open(tmp_path / "journal").close()
