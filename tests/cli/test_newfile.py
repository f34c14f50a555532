"""A file that a command makes is there whole or not at all, and what keeps it from being written is told of it."""

from __future__ import annotations

import errno
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
