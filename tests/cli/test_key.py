from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from mesh.cli.assembly import assembled
from mesh.cli.specs import ReferenceSpec
from mesh.cli.state import State


def test_key_show_prints_what_trust_takes(mesh, made, trusted) -> None:
    result = mesh("key", "show", "--state", made.state)
    assert (result.code, result.out, result.err) == (0, f"{trusted}\n", "")
    assert mesh("key", "show", "--state", made.state, "--json").json == {"steward": trusted}


def test_key_backup_is_private_and_never_over_anything(mesh, made, trusted, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    result = mesh("key", "backup", "--state", made.state, "--out", path, "--json")
    assert (result.code, result.json) == (0, {"steward": trusted, "out": str(path)})
    assert path.read_bytes() == (made.state / "key").read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    result = mesh("key", "backup", "--state", made.state, "--out", path)
    assert result.code == 3
    assert "exists already" in result.err


def test_key_that_others_can_read_is_refused(mesh, served) -> None:
    (served.state / "key").chmod(0o644)
    result = mesh("key", "show", "--state", served.state)
    assert (result.code, result.out) == (3, "")
    assert "0600" in result.err


def test_key_never_shows_the_seed(mesh, made, tmp_path: Path) -> None:
    seed = (made.state / "key").read_text().split()[1]
    for argv in (("key", "show"), ("key", "backup", "--out", tmp_path / "b"), ("receipts", "list")):
        result = mesh(*argv, "--state", made.state)
        assert seed not in result.out + result.err


def test_key_lost_beside_its_ledger_is_asked_for_and_not_made_anew(mesh, served) -> None:
    backup = served.state / "backup"
    (served.state / "key").rename(backup)
    result = mesh("serve", "--reference", "--state", served.state, "--port", "0")
    assert (result.code, result.out) == (3, "")
    assert "put its backup there" in result.err
    assert not (served.state / "key").exists()


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "emptied"])
def test_ledger_lost_beside_its_key_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], lose) -> None:
    state = State(tmp_path / "state")

    async def start() -> str:
        async with assembled(state, [ReferenceSpec()]):
            return capsys.readouterr().err

    assert "numbers are given out again" not in asyncio.run(start())
    assert "numbers are given out again" not in asyncio.run(start())
    lose(state.ledger)
    assert "numbers are given out again" in asyncio.run(start())
