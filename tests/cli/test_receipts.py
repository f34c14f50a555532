from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.ledger import Ledger
from mesh.ledger.reader import LedgerReader
from mesh.schema.ids import serve_id_text
from tests.support.stewards import KEY


def test_list_shows_the_newest_first(mesh, made) -> None:
    result = mesh("receipts", "list", "--state", made.state)
    assert (result.code, result.err) == (0, "")
    rows = result.out.splitlines()
    assert rows[0].startswith("3 receipts of ed25519:")
    serves = [serve_id_text(sealed.value.serve_id) for sealed in reversed(made.sealed)]
    assert [row.split()[-1] for row in rows[2:]] == serves  # whole ids, however narrow the terminal


def test_list_limits_and_lists_all(mesh, made) -> None:
    listed = mesh("receipts", "list", "--state", made.state, "--limit", "1", "--json").json
    assert (listed["count"], listed["open_serves"], len(listed["receipts"])) == (3, 0, 1)
    assert listed["head"] == listed["receipts"][0]["receipt_id"] == made.sealed[2].id.text
    assert len(mesh("receipts", "list", "--state", made.state, "--all", "--json").json["receipts"]) == 3
    assert mesh("receipts", "list", "--state", made.state, "--limit", "0").code == 2


def test_list_does_not_read_markup_in_names(mesh, tmp_path: Path, serve_into) -> None:
    asyncio.run(serve_into(tmp_path, 1, recipe_id="[red]m[/red] [link=x]"))
    assert "[red]m[/red] [link=x]" in mesh("receipts", "list", "--state", tmp_path).out


def test_list_of_an_empty_ledger(mesh, tmp_path: Path, trusted) -> None:
    Ledger.open(tmp_path / "ledger.sqlite", steward=KEY.public).close()
    result = mesh("receipts", "list", "--state", tmp_path)
    assert (result.code, result.out) == (0, f"0 receipts of {trusted}\n")
    assert "head" not in mesh("receipts", "list", "--state", tmp_path, "--json").json
    assert mesh("verify", tmp_path, "--trust", trusted).code == 11


def test_list_beside_the_owner_of_the_ledger(mesh, served) -> None:
    with Ledger.open(served.state / "ledger.sqlite", steward=KEY.public):
        assert mesh("receipts", "list", "--state", served.state).code == 0


@pytest.mark.parametrize("by", ["receipt", "serve", "seq"])
def test_show_finds_a_receipt_by_any_of_its_names(mesh, made, by: str) -> None:
    sealed = made.sealed[1]
    name = {"receipt": sealed.id.text, "serve": serve_id_text(sealed.value.serve_id), "seq": "1"}[by]
    result = mesh("receipts", "show", name, "--state", made.state)
    assert result.code == 0
    assert sealed.id.text in result.out
    view = mesh("receipts", "show", name, "--state", made.state, "--json").json
    assert (view["receipt_id"], view["receipt"]["seq"]) == (sealed.id.text, 1)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("3", 10),
        ("9" * 18, 10),
        ("9" * 40, 10),
        ("b3:" + "0" * 64, 10),
        ("00000000-0000-7000-8000-000000000000", 10),
        ("b3:00", 2),
        ("B3:" + "0" * 64, 2),
        ("nothing", 2),
        ("²", 2),
    ],
)
def test_show_of_what_is_not_there(mesh, made, name: str, code: int) -> None:
    result = mesh("receipts", "show", name, "--state", made.state)
    assert (result.code, result.out) == (code, "")


def test_export_writes_the_exact_bytes_once(mesh, made, tmp_path: Path) -> None:
    path = tmp_path / "out.cbor"
    assert mesh("receipts", "export", "0", "--state", made.state, "--out", path).code == 0
    assert path.read_bytes() == made.envelope
    path.write_bytes(b"precious")
    result = mesh("receipts", "export", "0", "--state", made.state, "--out", path)
    assert (result.code, path.read_bytes()) == (3, b"precious")
    assert result.err == f"mesh receipts: {path}: file exists\n"


def test_export_of_all_refuses_a_directory_that_is_there(mesh, made, tmp_path: Path) -> None:
    assert mesh("receipts", "export", "--all", "--state", made.state, "--out", tmp_path).code == 3
    assert list(tmp_path.iterdir()) == []


def test_export_directory_holds_every_receipt(mesh, made, tmp_path: Path) -> None:
    result = mesh("receipts", "export", "--all", "--state", made.state, "--out", tmp_path / "all", "--json")
    assert result.json == {"out": str(tmp_path / "all"), "receipts": 3}
    written = {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    checkpoints = {name: written.pop(name) for name in sorted(written) if name.startswith("checkpoint")}
    assert list(checkpoints) == [*(f"checkpoint-{n:012d}.cbor" for n in (1, 2, 3)), "checkpoint.cbor"]
    with LedgerReader.open(made.state / "ledger.sqlite") as reader:
        assert list(checkpoints.values()) == [envelope for _, envelope in reader.checkpoints()]
    assert written == {f"receipt-{n:012d}.cbor": sealed.envelope for n, sealed in enumerate(made.sealed)}


def test_export_wants_one_receipt_or_all(mesh, made, tmp_path: Path) -> None:
    for argv in ((), ("0", "--all")):
        assert mesh("receipts", "export", *argv, "--state", made.state, "--out", tmp_path / "x").code == 2
    assert mesh("receipts", "export", "--all", "--state", made.state, "--out", "-").code == 2
    assert mesh("receipts", "export", "0", "--state", made.state, "--out", "-", "--json").code == 2


def test_export_to_stdout_is_only_the_bytes(made) -> None:
    command = [sys.executable, "-m", "mesh.cli.main", "receipts", "export", "0", "--out", "-"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "MESH_STATE": str(made.state)})
    assert (done.returncode, done.stdout) == (0, made.envelope)


def test_export_is_for_others_to_read(mesh, made, tmp_path: Path) -> None:
    path = tmp_path / "out.cbor"
    before = os.umask(0)
    try:
        mesh("receipts", "export", "0", "--state", made.state, "--out", path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_state_that_holds_no_ledger(mesh, tmp_path: Path) -> None:
    result = mesh("receipts", "list", "--state", tmp_path)
    assert result.code == 3
    assert "no ledger here" in result.err


def test_state_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mesh.cli.state import default_state

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MESH_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_state() == tmp_path / ".local" / "state" / "mesh"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state() == tmp_path / ".local" / "state" / "mesh"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert default_state() == Path("/xdg/mesh")
    monkeypatch.setenv("MESH_STATE", "/own")
    assert default_state() == Path("/own")
