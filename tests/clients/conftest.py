"""The lane with real clients: `make test-clients`. MESH_CLIENTS names the environment that it installs them into.

A client is a script of this folder, run by that environment's Python: it reads a JSON object from its standard input
(`base_url` and whatever the test adds) and prints one line of JSON, what it made of the answers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.lanes import skip_below

FOLDER = os.environ.get("MESH_CLIENTS")
HERE = Path(__file__).parent

Asked = Callable[..., Awaitable[Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FOLDER is None:
        skip_below(HERE, items, "no other clients here: `make test-clients` installs them")


@pytest.fixture
def client(tmp_path: Path) -> Asked:
    """Runs a client: `await client("script.py", base_url, model=...)` gives what it printed."""
    assert FOLDER is not None
    python = Path(FOLDER).absolute() / "bin" / "python"
    home = tmp_path / "client"
    home.mkdir()
    # nothing of the caller's environment: no key, proxy or endpoint of somebody's own reaches a client
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LLM_USER_PATH": str(home), "NO_PROXY": "*"}

    async def ask(script: str, base_url: str, **fields: Any) -> Any:
        process = await asyncio.create_subprocess_exec(
            str(python), "-I", str(HERE / script),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment, cwd=home,
        )  # fmt: skip
        try:
            told, complaint = await process.communicate(json.dumps({"base_url": base_url, **fields}).encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, complaint.decode(errors="replace")
        return json.loads(told.splitlines()[-1])

    return ask
