"""As many files, and as many bytes of them, as a pack may hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.candidates import MACOS, runtime_json
from tests.runtime.refusals import LARGE, check_case
from tests.support.corpora import ROOT

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("case", LARGE)
def test_a_tree_of_many_files_is_packed_or_refused(case: str, folder: Path, tmp_path: Path) -> None:
    check_case(case, folder, tmp_path)


def test_a_gibibyte_is_packed_and_read_in_little_memory(folder: Path, tmp_path: Path) -> None:
    """All that a pack may hold, in a process of its own whose peak is looked at afterwards."""
    with (folder / "weights.dat").open("wb") as file:
        file.truncate((1 << 30) - len(runtime_json(MACOS)))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder), str(tmp_path / "out.letsinfer")],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    (tmp_path / "out.letsinfer").unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    size, peak_kib = map(int, done.stdout.split())
    assert size > 1 << 30
    assert peak_kib < 100_000


PEAK = """
import re, sys
from pathlib import Path
from mesh.runtime.packing import pack
from mesh.runtime.unpacking import verify
packed = pack(Path(sys.argv[1]), Path(sys.argv[2]))
assert verify(Path(sys.argv[2])) == packed
# not getrusage, whose peak is that of the process too which this one was forked from
print(packed.archive_bytes, *re.findall(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text()))
"""
