"""A model's files are digested while they are loaded, and both have to see the same ones."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mesh.engine.gguf_files import ModelFiles
from mesh.errors import EngineFailed, WeightsChanged
from mesh.identity.model import read_model
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tiny_gguf(tmp_path / "m.gguf")
    return tmp_path / "m.gguf"


async def nothing() -> str:
    return "loaded"


def test_files_that_stay_are_digested_and_then_watched(path: Path) -> None:
    async def scenario() -> None:
        files, answer = await ModelFiles.loaded(read_model(path), nothing)
        assert answer == "loaded"
        assert [file.name for file in files.weights.files] == ["model.gguf"]
        assert await files.changed() is None
        os.utime(path, ns=(0, 0))
        changed = await files.changed()
        assert isinstance(changed, WeightsChanged)
        assert "m.gguf: mtime_ns was" in str(changed)
        assert "restart the gateway" in str(changed)

    asyncio.run(scenario())


@pytest.mark.parametrize("digested", [False, True])
def test_files_that_are_replaced_while_they_are_loaded_are_refused(path: Path, digested: bool) -> None:
    async def scenario() -> None:
        around = asyncio.all_tasks()

        async def load() -> None:
            if digested:  # without, the task that digests has not had its first turn
                await asyncio.wait(asyncio.all_tasks() - around)
            other = path.with_name("other")
            other.write_bytes(path.read_bytes())
            other.replace(path)

        with pytest.raises(WeightsChanged, match="while they were loaded"):
            await ModelFiles.loaded(read_model(path), load)

    asyncio.run(scenario())


def test_fault_of_the_load_is_told_once_the_files_are_let_go(path: Path) -> None:
    async def scenario() -> None:
        async def load() -> None:
            raise EngineFailed("no")

        with pytest.raises(EngineFailed, match="no"):
            await ModelFiles.loaded(read_model(path), load)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_missing_file_is_told_before_anything_is_loaded(path: Path) -> None:
    model = read_model(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        asyncio.run(ModelFiles.loaded(model, nothing))
