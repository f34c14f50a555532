"""The lane on a real vLLM: `make test-vllm`. MESH_VLLM names the executable; without it every test here is skipped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lanes import skip_below
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import RealServer

EXECUTABLE = os.environ.get("MESH_VLLM")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if EXECUTABLE is None:
        skip_below(Path(__file__).parent, items, "no vLLM here: `make test-vllm` installs one and runs this lane")


@pytest.fixture(scope="session")
def executable() -> Path:
    assert EXECUTABLE is not None
    return Path(EXECUTABLE).absolute()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for a module: an engine lives on the loop that started it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def server(executable: Path) -> Iterator[RealServer]:
    """One that is not the mesh's own. A test says what it has to be, and leaves it as whatever it is then."""
    running = RealServer(executable)
    try:
        yield running
    finally:
        running.close()
