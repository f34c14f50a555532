"""Trees that are packed or refused: what each adds to the base tree, and that it gets its verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.errors import CandidateError
from mesh.runtime.packing import pack
from mesh.runtime.unpacking import verify

CASES = {  # and whether they are packed
    "link to a file": False, "link to a folder": False, "link to nothing": False, "link that is left out": True,
    "link in a folder that is left out": True, "pipe": False, "benchmark.md": False, "benchmark.md further down": True,
    "into the source": False, "over another file": False, "empty folder": True, "second name of a file": True,
    "byte order mark": False, "key twice": False, "as many files as may be": True, "one file more": False,
    "one byte too many": False,
}  # fmt: skip
LARGE = ("as many files as may be", "one file more")


def make_case(case: str, folder: Path, output: Path) -> Path:
    """What a case adds to the base tree; gives the output."""
    match case:
        case "link to a file":
            (folder / "link").symlink_to("runtime.json")
        case "link to a folder":
            (folder / "sub").mkdir()
            (folder / "link").symlink_to("sub")
        case "link to nothing":
            (folder / "link").symlink_to("nowhere")
        case "link that is left out":
            (folder / "x.pyc").symlink_to("nowhere")
        case "link in a folder that is left out":
            (folder / "__pycache__").mkdir()
            (folder / "__pycache__" / "link").symlink_to("nowhere")
        case "pipe":
            os.mkfifo(folder / "pipe")
        case "benchmark.md":
            (folder / "benchmark.md").write_text("evidence")
        case "benchmark.md further down":
            (folder / "sub").mkdir()
            (folder / "sub" / "benchmark.md").write_text("evidence")
        case "into the source":
            return folder / "out.letsinfer"
        case "over another file":
            output.write_bytes(b"here")
        case "empty folder":
            (folder / "empty").mkdir()
        case "second name of a file":
            os.link(folder / "runtime.json", folder / "copy.json")
        case "byte order mark":
            (folder / "runtime.json").write_bytes(b"\xef\xbb\xbf" + (folder / "runtime.json").read_bytes())
        case "key twice":
            again = (folder / "runtime.json").read_bytes().replace(b"{", b'{"schema_version": 6,', 1)
            (folder / "runtime.json").write_bytes(again)
        case "as many files as may be" | "one file more":
            for n in range(10_000 if "more" in case else 9_999):
                (folder / f"{n}.dat").touch()
        case "one byte too many":
            with (folder / "big.dat").open("wb") as file:
                file.truncate((1 << 30) - len((folder / "runtime.json").read_bytes()) + 1)
        case _:
            raise AssertionError(case)
    return output


def check_case(case: str, folder: Path, tmp_path: Path) -> None:
    output = make_case(case, folder, tmp_path / "out.letsinfer")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    if CASES[case]:
        pack(folder, output)
        verify(output)
    else:
        with pytest.raises((CandidateError, FileExistsError)):
            pack(folder, output)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
