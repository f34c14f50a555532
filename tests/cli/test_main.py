"""The command as a whole: exit codes, one line per error, one object per `--json`, and a start that loads little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mesh import errors
from mesh.cli.exits import exit_code
from mesh.cli.main import COMMANDS

MESH = [sys.executable, "-m", "mesh.cli.main"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.SignatureError("x"), 10),
        (errors.SequenceError("x"), 10),
        (errors.NotFound("x"), 10),
        (errors.NoCandidate("x", reasons={}), 10),
        (errors.UntrustedSteward("x"), 11),
        (errors.LedgerLocked("x"), 3),
        (errors.KeyFileError("x"), 3),
        (errors.EngineUnsupported("x"), 3),
        (errors.MeterError("x"), 3),
        (FileNotFoundError("x"), 3),
        (TimeoutError("x"), 3),
        (KeyError("x"), None),
        (AssertionError("x"), None),
    ],
)
def test_exit_code_follows_the_error_tree(error: Exception, code: int | None) -> None:
    assert exit_code(error) == code


def test_main_help_names_every_command(mesh) -> None:
    result = mesh("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert command in result.out


@pytest.mark.parametrize("argv", [(), ("nope",), ("verify",), ("key",), ("receipts", "show", "--state")])
def test_wrong_usage_is_one_line_and_exit_2(mesh, argv: tuple[str, ...]) -> None:
    result = mesh(*argv)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("mesh")
    assert result.err.count("\n") == 1


def test_wrong_usage_is_an_object_with_json(mesh) -> None:
    result = mesh("verify", "--json")
    assert (result.code, result.json["error"]["code"], result.err) == (2, "usage", "")


def test_missing_file_is_exit_3_without_an_errno(mesh, tmp_path: Path) -> None:
    trust = "ed25519:" + "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    result = mesh("verify", tmp_path / "none.cbor", "--trust", trust)
    assert result.code == 3
    assert result.err == f"mesh verify: {tmp_path / 'none.cbor'}: no such file or directory\n"
    result = mesh("verify", tmp_path / "none.cbor", "--trust", trust, "--json")
    assert (result.code, result.json["error"]["code"]) == (3, "io")


def test_message_from_elsewhere_cannot_drive_a_terminal(mesh, tmp_path: Path) -> None:
    result = mesh("weights", "digest", tmp_path / "a\x1b[2J\u202eb\nc")
    assert result.code == 3
    assert "\x1b" not in result.err
    assert "\u202e" not in result.err
    assert result.err.count("\n") == 1


def test_start_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from mesh.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'pydantic', 'cbor2', 'nacl', 'blake3', 'aiohttp', 'rich', 'sqlite3', 'numpy'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_works_without_engine_gateway_and_terminal_parts(made) -> None:
    """An auditor's check needs none of what serving needs."""
    receipt = made.state.parent / "alone.cbor"
    receipt.write_bytes(made.envelope)
    code = (
        "import sys\n"
        "from mesh.cli.main import main\n"
        f"code = main(['verify', {str(receipt)!r}, '--trust', {'ed25519:' + made.sealed[0].value.steward.hex()!r}])\n"
        "assert code == 0, code\n"
        "heavy = {'aiohttp', 'rich', 'numpy', 'xllamacpp', 'jinja2', 'psutil'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_pipe_is_no_traceback_and_not_success(made) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*MESH, "receipts", "list", "--state", str(made.state)], stdout=write, stderr=subprocess.PIPE
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (3, b"")


def test_output_survives_a_terminal_without_unicode(made, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*MESH, "key", "show", "--state", str(tmp_path / "größe"), "--json"], capture_output=True, text=True, env=env
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "key-file"
