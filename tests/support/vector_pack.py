"""A pack of vectors with one case, `sequence/five`, to be damaged."""

import hashlib
import shutil
from pathlib import Path

from conformance.regenerate import VECTORS

FIVE = "sequence/five\tsequence\ttrust.txt a.cbor b.cbor c.cbor d.cbor e.cbor\t0\t5\tsequence\t5\t-"


def small_pack(folder: Path, *lines: str) -> Path:
    """`lines` are those of its index."""
    shutil.copytree(VECTORS / "sequence" / "five", folder / "sequence" / "five", dirs_exist_ok=True)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}" for path in paths]
    sum_up(folder, "".join(f"{line}\n" for line in sums).encode(), *lines)
    return folder


def sum_up(folder: Path, sums: bytes, *lines: str) -> None:
    """Put `sums` into SHA256SUMS, and their digest into the index."""
    (folder / "SHA256SUMS").write_bytes(sums)
    first = f"# mesh/1 vectors v1 sha256sums:{hashlib.sha256(sums).hexdigest()}"
    (folder / "INDEX.tsv").write_text("".join(f"{line}\n" for line in (first, *lines)))
