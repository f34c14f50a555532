"""`mesh conformance`, from a checkout and from an installed package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conformance import regenerate
from conformance.sums import CannotRun
from mesh.cli import conformance
from tests.support.vector_pack import FIVE, small_pack

CLIENT = "conformance/clients/mesh_client.py"


@pytest.mark.usefixtures("vectors_made_once")
def test_regenerate_check_is_silent_on_a_clean_tree(mesh) -> None:
    assert tuple(vars(mesh("conformance", "regenerate", "--check")).values()) == (0, "", "")
    assert mesh("conformance", "regenerate", "--check", "--json").json["differences"] == []


def test_regenerate_check_names_what_differs_and_regenerate_mends_it(
    mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regenerate, "VECTORS", tmp_path)
    monkeypatch.setattr(regenerate, "tree", lambda: {"INDEX.tsv": b"#\n", "a/b/vector.json": b"{}\n"})
    assert "2 of them changed" in mesh("conformance", "regenerate").out
    (tmp_path / "INDEX.tsv").write_text("")
    result = mesh("conformance", "regenerate", "--check")
    assert (result.code, result.out) == (10, "INDEX.tsv: differs\n")
    assert mesh("conformance", "regenerate", "--json").json == {"files": 2, "changed": 1}
    assert mesh("conformance", "regenerate", "--check").code == 0


def test_run_reports_and_ends_with_what_came_of_it(mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(regenerate.ROOT)
    only = ("--only", "sequence/five")
    result = mesh("conformance", "run", *only, "--", sys.executable, CLIENT)
    assert result.code == 0
    assert result.out.splitlines()[-1] == "cases 1 passed 1 failed 0 expected-failures 0 not-offered 0"
    result = mesh("conformance", "run", *only, "--json", "--", sys.executable, "-W", "error", CLIENT)
    assert (result.code, result.json["passed"]) == (0, 1)
    assert result.json["client"].endswith(f"-W error {CLIENT}")
    result = mesh("conformance", "run", *only, "--", "true")
    assert (result.code, "FAIL sequence/five: sequence 5: " in result.out) == (10, True)


def test_run_without_a_client_asks_this_packages_own(mesh) -> None:
    result = mesh("conformance", "run", "--only", "sequence/", "--json")
    assert (result.code, result.json["failed"], result.json["passed"]) == (0, {}, result.json["cases"])
    assert result.json["client"].startswith("mesh ")


def test_run_says_what_kept_it_from_running(mesh, tmp_path: Path) -> None:
    result = mesh("conformance", "run", "--vectors", tmp_path, "--", "true")
    assert (result.code, result.out) == (3, "")
    assert "no vectors" in result.err
    result = mesh("conformance", "run", "--expect-failures", tmp_path / "none", "--json", "--", "true")
    assert (result.code, result.json["error"]["code"]) == (3, "cannot-run")


def test_run_names_the_file_that_is_wrong(mesh, tmp_path: Path) -> None:
    small_pack(tmp_path, FIVE)
    file = tmp_path / "sequence" / "five" / "a.cbor"
    file.write_bytes(b"")
    result = mesh("conformance", "run", "--vectors", tmp_path, "--", "true")
    assert (result.code, result.out) == (3, "")
    assert f"mesh conformance: {file}: not the file that SHA256SUMS names: expected SHA-256 " in result.err


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_regenerate_names_the_file_that_is_wrong(mesh, monkeypatch: pytest.MonkeyPatch, more) -> None:
    monkeypatch.setattr(regenerate, "GROUPS", ("nowhere",))
    result = mesh("conformance", "regenerate", *more)
    assert (result.code, result.out) == (3, "")
    assert "conformance/groups/nowhere.py: expected this file of the pack" in result.err

    def damaged() -> None:
        raise CannotRun("conformance/signed/block.bin: not the file that SHA256SUMS names")

    monkeypatch.setattr(regenerate, "tree", damaged)
    result = mesh("conformance", "regenerate", "--json", *more)
    assert (result.code, "signed/block.bin" in result.json["error"]["message"]) == (3, True)


@pytest.mark.parametrize("words", [("regenerate", "--check"), ("run", "true")])
def test_installed_package_says_what_is_missing(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words) -> None:
    monkeypatch.setattr(conformance, "ROOT", tmp_path)
    result = mesh("conformance", *words)
    assert (result.code, result.out) == (3, "")
    assert "run this from a checkout" in result.err
    assert json.loads(mesh("conformance", *words, "--json").out)["error"]["code"] == "no-pack"
