from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.support.models import smollm2_path
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for a module: an engine lives on the loop that started it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner, tiny: Path) -> Iterator[GgufEngine]:
    engine = runner.run(GgufEngine.start(GgufConfig(tiny, "tiny", watts_u=5_000_000)))
    yield engine
    runner.run(engine.close())


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return smollm2_path()
