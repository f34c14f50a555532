"""A file that a command makes is there whole or not at all, and what keeps it from being written is told of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.cli.newfile import naming, write_new


def test_a_full_disk_is_told_of_the_file_that_was_being_written() -> None:
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        naming("energy.svg"),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x")
    assert caught.value.filename == "energy.svg"


def test_another_files_fault_keeps_its_name() -> None:
    with pytest.raises(FileNotFoundError) as caught, naming("energy.svg"):
        open("/nowhere/else", "rb").close()
    assert caught.value.filename == "/nowhere/else"


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught:
        write_new(tmp_path / "new", chunks())
    assert caught.value.filename == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from mesh.cli.newfile import write_new

def chunks():
    yield b"half" * 100_000
    os.kill(os.getpid(), signal.SIGKILL)
    yield b"the rest"

write_new(Path(sys.argv[1]), chunks())
"""


def test_whoever_is_killed_half_way_leaves_nothing_that_looks_done(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "new")], check=False)
    assert done.returncode < 0
    assert not (tmp_path / "new").exists()
    write_new(tmp_path / "new", [b"whole"])  # nothing is in its way
    assert (tmp_path / "new").read_bytes() == b"whole"


def test_what_somebody_else_wrote_meanwhile_stays(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        (tmp_path / "new").write_bytes(b"theirs")
        yield b"ours"

    with pytest.raises(FileExistsError) as caught:
        write_new(tmp_path / "new", chunks())
    assert caught.value.filename == str(tmp_path / "new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"theirs"]


def test_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write_new(tmp_path / ("n" * 255), [b"x"], mode=0o600)
    assert [(path.name, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [("n" * 255, 0o600)]
