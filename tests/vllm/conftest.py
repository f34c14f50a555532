"""The lane on a real vLLM: `make test-vllm`. MESH_VLLM names the executable; without it every test here is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import RealServer

EXECUTABLE = os.environ.get("MESH_VLLM")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if EXECUTABLE is None:
        lane = pytest.mark.skip(reason="no vLLM here: `make test-vllm` installs one and runs this lane")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(lane)


@pytest.fixture(scope="session")
def executable() -> Path:
    assert EXECUTABLE is not None
    return Path(EXECUTABLE).absolute()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(executable: Path, model: Path) -> Iterator[RealServer]:
    """One that is not the mesh's own, in float32; a test that stops it or starts it otherwise says so."""
    running = RealServer(executable)
    try:
        running.start(model)
        yield running
    finally:
        running.close()
