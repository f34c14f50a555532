"""The committed vectors are what the generator makes, and it makes them without `mesh`."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import regenerate
from conformance.regenerate import ROOT, VECTORS, differences, write
from tests.support.vector_cases import files


def test_committed_vectors_are_those_that_are_made():
    assert differences(files()) == []


@pytest.mark.deep
def test_making_them_again_in_another_process_gives_the_same_bytes(tmp_path: Path):
    code = (
        "import sys, pathlib; from conformance.regenerate import tree, write; write(tree(), pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    assert differences(files(), tmp_path) == []


@pytest.fixture
def small(tmp_path: Path) -> tuple[dict[str, bytes], Path]:
    some = {path: data for path, data in files().items() if path.startswith("sequence/five/") or path == "INDEX.tsv"}
    write(some, tmp_path)
    return some, tmp_path


def test_each_difference_is_named(small):
    some, root = small
    (root / "INDEX.tsv").write_bytes(b"")
    (root / "sequence/five/a.cbor").unlink()
    (root / "sequence/five/notes.txt").write_text("mine")
    assert differences(some, root) == [
        "INDEX.tsv: differs",
        "sequence/five/a.cbor: missing",
        "sequence/five/notes.txt: made by nothing",
    ]


def test_writing_mends_what_differs_and_leaves_the_rest_alone(small):
    some, root = small
    (root / "INDEX.tsv").write_bytes(b"")
    (root / "old" / "case").mkdir(parents=True)
    (root / "old" / "case" / "vector.json").write_text("{}")
    shutil.rmtree(root / "sequence")
    kept = len(some) - 1
    assert write(some, root) == kept + 2
    assert differences(some, root) == []
    assert not (root / "old").exists()
    assert write(some, root) == 0


def test_no_case_is_made_with_the_encoder_under_test():
    """The client and what runs it may import `mesh`; what makes the vectors may not, however far down."""
    seen: set[Path] = set()
    ahead = [Path(regenerate.__file__), *(ROOT / "conformance" / "groups").glob("*.py")]
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                top = name.partition(".")[0]
                assert top in ("conformance", "blake3") or top in sys.stdlib_module_names, f"{path}: {name}"
                if top == "conformance":
                    module = ROOT / (name.replace(".", "/") + ".py")
                    ahead += [module] if module.exists() else []
    assert {"case.py", "writer.py", "ed25519.py", "digests.py", "material.py"} <= {path.name for path in seen}


def test_two_cases_cannot_have_one_id(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(regenerate, "GROUPS", ("commitment", "commitment"))
    with pytest.raises(ValueError, match="two cases are called commitment/opening"):
        regenerate.all_cases()


def test_vectors_are_free_and_kept_as_they_are():
    assert "CC0 1.0" in (VECTORS.parent / "LICENSE").read_text()
    assert "* -text" in (VECTORS.parent / ".gitattributes").read_text().splitlines()
