"""The trees of `pack_refusals`: what each adds to the base tree, and that it gets its verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.errors import CandidateError
from mesh.runtime.packing import pack
from mesh.runtime.unpacking import verify
from tests.runtime.conftest import EXPECTED, MACOS, runtime_json

LARGE = [one for one in EXPECTED["pack_refusals"] if "files in all" in one["case"]]


def make_case(case: str, folder: Path, output: Path) -> Path:
    """What a case of `pack_refusals` adds to the base tree; gives the output."""
    match case:
        case "symlink to a file":
            (folder / "link").symlink_to("runtime.json")
        case "symlink to a directory":
            (folder / "sub").mkdir()
            (folder / "link").symlink_to("sub")
        case "dangling symlink":
            (folder / "link").symlink_to("nowhere")
        case "symlink with an ignored name (x.pyc)":
            (folder / "x.pyc").symlink_to("nowhere")
        case "symlink inside __pycache__":
            (folder / "__pycache__").mkdir()
            (folder / "__pycache__" / "link").symlink_to("nowhere")
        case "FIFO":
            os.mkfifo(folder / "pipe")
        case "benchmark.md at the top":
            (folder / "benchmark.md").write_text("evidence")
        case "benchmark.md nested":
            (folder / "sub").mkdir()
            (folder / "sub" / "benchmark.md").write_text("evidence")
        case "output inside the source":
            return folder / "out.letsinfer"
        case "output already exists":
            output.write_bytes(b"here")
        case "empty directory only beside runtime.json":
            (folder / "empty").mkdir()
        case "hard link to runtime.json":
            os.link(folder / "runtime.json", folder / "copy.json")
        case "runtime.json with a UTF-8 BOM":
            (folder / "runtime.json").write_bytes(b"\xef\xbb\xbf" + runtime_json(MACOS))
        case "runtime.json with a duplicate key":
            again = runtime_json(MACOS).replace(b"{", b'{"schema_version": 6,', 1)
            (folder / "runtime.json").write_bytes(again)
        case "10,000 files in all" | "10,001 files in all":
            for n in range(9_999 if "10,000" in case else 10_000):
                (folder / f"{n}.dat").touch()
        case "total one byte over 1 GiB":
            with (folder / "big.dat").open("wb") as file:
                file.truncate((1 << 30) - len(runtime_json(MACOS)) + 1)
        case _:
            raise AssertionError(case)
    return output


def check_case(expected: dict[str, str], folder: Path, tmp_path: Path) -> None:
    output = make_case(expected["case"], folder, tmp_path / "out.letsinfer")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    # duplicate keys pass the published packer; two readers may see two candidates, so here they do not
    if expected["verdict"] == "accepted" and "duplicate" not in expected["case"]:
        pack(folder, output)
        verify(output)
    else:
        with pytest.raises((CandidateError, FileExistsError)):
            pack(folder, output)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
