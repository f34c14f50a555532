"""What each command ends with, one line a case, through the command as a script runs it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mesh.cli.demo import Falsifier
from mesh.engine.reference import ReferenceEngine
from mesh.grant.making import issue
from mesh.grant.text import grant_text
from mesh.schema.disclosure import Disclosure, pack_ids
from tests.cli.exit_cases import CASES
from tests.identity.identities import block
from tests.support.stewards import KEY, PROMPT, Client, request, running
from tests.support.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.usefixtures("vectors_made_once")


def parsed(line: str) -> tuple[str, int, str]:
    command, code, said = (cell.strip() for cell in line.split("|", 2))
    return command, int(code), said


TABLE = [parsed(line) for line in CASES.splitlines() if line]
LINES = [command for command, _, _ in TABLE]
# The first of each command and of each exit code gets a process, and so does what root has to be kept from reading.
FIRSTS = {name: command for command, code, _ in reversed(TABLE) for name in (command.partition(" ")[0], code)}
PROCESSES = [command for command in LINES if command in FIRSTS.values() or "closed" in command]
HERE = [case for case in TABLE if case[0] not in PROCESSES]
# Root reads everything: the two capabilities by which it does are given up first.
AS_A_USER = (
    "import ctypes, os, sys\n"
    "if os.geteuid() == 0:\n"
    "    for capability in (1, 2):\n"
    "        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'mesh.cli.main', *sys.argv[1:]])\n"
)


def filled(place: Path, made) -> Path:
    """Put into `place` what the cases name."""
    shutil.copytree(made.state, place / "state")
    for name in ("folder", "blank"):
        (place / name).mkdir(mode=0o700)
    for name in ("damaged", "closed"):
        shutil.copytree(made.state, place / name)
    (place / "damaged" / "ledger.sqlite").write_bytes((made.state / "ledger.sqlite").read_bytes()[:20_000])
    for name in ("empty", "blank/ledger.sqlite", "blank/key"):
        (place / name).touch(mode=0o600)
    os.mkfifo(place / "pipe")
    (place / "garbage").write_bytes(b"\xff\x00" * 150)
    write_tiny_gguf(place / "tiny.gguf")
    (place / "trust").write_text("ed25519:" + made.sealed[0].value.steward.hex() + "\n")
    (place / "stranger").write_text("# somebody else\ned25519:" + b"\x01".rjust(32, b"\x58").hex() + "\n")
    for name, identity in {
        "small": block(), "wide": block(recipe__kv_dtype="f16"), "half": block(shard_end=2),
    }.items():  # fmt: skip
        (place / f"{name}.json").write_text(json.dumps(identity))
    (place / "plain.json").write_text('{"choices": []}')
    grant = issue(KEY, {"max-tokens": 9}, random=bytes)
    (place / "good.grant").write_text(grant_text(grant) + "\n")
    (place / "unknown.toml").write_text('[gateway]\nprot = 1\n[[backend]]\nkind = "reference"\n')
    keyed = f'[auth]\nkeys = ["b3:{"0" * 64}"]\n[state]\ndir = "new-keyed"\n[[backend]]\nkind = "reference"\n'
    (place / "keyed.toml").write_text(keyed)
    (place / "nul.toml").write_text(f'[gateway]\nhost = "a\\u0000b"\n{keyed}')
    (place / "good.cbor").write_bytes(made.envelope)
    disclosure = made.disclosures[0]
    (place / "good.disclosure").write_bytes(disclosure.to_cbor())
    ids = disclosure.output_ids
    changed = Disclosure.from_map(disclosure.to_map() | {"output": pack_ids([*ids[:-1], ids[-1] ^ 1])})
    (place / "changed.disclosure").write_bytes(changed.to_cbor())
    asyncio.run(falsify(place))
    (place / "closed").chmod(0)
    return place


async def falsify(place: Path) -> None:
    engine = Falsifier(ReferenceEngine(), 3)
    async with running(place / "other") as steward:
        admitted = await steward.admit(request(), [engine], caller="caller")
        serve = await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
        (place / "false.cbor").write_bytes(serve.sealed.envelope)
        (place / "false.disclosure").write_bytes(serve.disclosure().to_cbor())


@pytest.fixture(scope="module")
def place(made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = filled(tmp_path_factory.mktemp("cases"), made)
    yield folder
    (folder / "closed").chmod(0o700)


@pytest.fixture(scope="module")
def ended(place: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """What came of each case that gets a process."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        how = ("-c", AS_A_USER) if "closed" in line else ("-m", "mesh.cli.main")
        return subprocess.run(
            [sys.executable, *how, *shlex.split(line)],
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(PROCESSES, pool.map(run, PROCESSES), strict=True))


def check(code: int, said: str, got: int, out: str, err: str) -> None:
    assert got == code, err
    assert said in (err if code in (2, 3) else out + err)
    assert "Traceback" not in err
    if code in (2, 3):
        assert out == ""
        assert re.match(r"mesh( \w+)?: ", err.splitlines()[-1])
    if code == 2:
        assert err.count("\n") == 1


@pytest.mark.parametrize("line", PROCESSES)
def test_command_of_a_script_ends_as_it_should(ended, line: str) -> None:
    done = ended[line]
    _, code, said = next(case for case in TABLE if case[0] == line)
    check(code, said, done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("line", "code", "said"), HERE, ids=[line for line, _, _ in HERE])
def test_command_ends_as_it_should(mesh, place: Path, line: str, code: int, said: str, monkeypatch) -> None:
    monkeypatch.chdir(place)
    result = mesh(*shlex.split(line))
    check(code, said, result.code, result.out, result.err)


@pytest.mark.parametrize(("line", "code", "said"), TABLE, ids=LINES)
def test_command_prints_one_object_with_json(
    mesh, place: Path, line: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if line == "--version" or ("closed" in line and os.geteuid() == 0):
        return  # no command; a file that this process can read
    monkeypatch.chdir(place)
    result = mesh(*shlex.split(line.replace("new-", "json-")), "--json")
    assert result.code == code
    told = json.loads(result.out)
    assert type(told) is dict
    if code in (2, 3):
        assert set(told["error"]) == {"code", "message"}
        assert said in told["error"]["message"]


def test_cases_reach_every_command_and_every_exit_code() -> None:
    from mesh.cli.main import COMMANDS

    names = set(COMMANDS)
    assert names <= {line.split(" ")[0] for line in LINES}
    assert {code for _, code, _ in TABLE} == {0, 2, 3, 10, 11}


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("verify - --trust trust < good.cbor", 0, ""),
        ("verify - --trust trust <&-", 3, "bad file descriptor"),
        ("receipts export 0 --state state --out - >&-", 3, "bad file descriptor"),
        ("receipts list --state state > /dev/full", 3, "standard output: no space left on device"),
        ("receipts list --state state --json > /dev/full", 3, "standard output: no space left on device"),
        ("receipts list --state state 2> /dev/full", 0, ""),
        ("key backup --state state --out new-key-2 2>&-", 0, ""),
    ],
)
def test_stream_that_is_closed_or_full_is_no_traceback(place: Path, shell: str, code: int, said: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m mesh.cli.main {shell}"
    done = subprocess.run(line, shell=True, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert (done.stderr == "") if not said else done.stderr.endswith(f": {said}\n")
