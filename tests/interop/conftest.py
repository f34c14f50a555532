"""The lane with what others wrote: `make test-interop`. MESH_INTEROP names the folder that it installs them into."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lanes import skip_below

FOLDER = os.environ.get("MESH_INTEROP")
HERE = Path(__file__).parent

Ask = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FOLDER is None:
        skip_below(HERE, items, "no other implementations here: `make test-interop` installs them")


@pytest.fixture(scope="session")
def peer() -> Iterator[Ask]:
    """Asks the Python libraries: `peer(op, ...)`."""
    assert FOLDER is not None
    command = [str(Path(FOLDER) / "bin" / "python"), "-I", str(HERE / "peer.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answers = process.stdin, process.stdout

        def ask(op: str, **fields: Any) -> dict[str, Any]:
            asking.write(json.dumps({"op": op, **fields}) + "\n")
            asking.flush()
            told: dict[str, Any] = json.loads(answers.readline())
            return told

        yield ask


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, list[bytes]], list[dict[str, Any]]]:
    """Checks envelopes under a key with Node, a CBOR library and Node's own Ed25519."""
    assert FOLDER is not None
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "foreign.mjs", folder)
    (folder / "node_modules").symlink_to(Path(FOLDER).absolute() / "node" / "node_modules")

    def check(key: bytes, envelopes: list[bytes]) -> list[dict[str, Any]]:
        lines = [json.dumps({"key": key.hex()}), *(envelope.hex() for envelope in envelopes)]
        ran = subprocess.run(
            ["node", "foreign.mjs"],
            cwd=folder,
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return check
