"""A server that is restarted, replaced or reconfigured while a gateway runs on it: noticed before the next serve."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.errors import EngineUnavailable, WeightsChanged
from tests.support.stewards import Client, request
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.servers import RealServer

PROMPT = (104, 105)


def test_change_of_the_server_is_noticed_before_the_next_serve(server: RealServer, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(model, folder)

    def again(where: Path, *flags: str, dtype: str = "float32") -> None:
        server.stop()
        server.start(where, *flags, dtype=dtype)

    async def ids(engine: VllmEngine) -> tuple[int, ...]:
        await engine.ready()
        return (await engine.serve(request(max_tokens=12), PROMPT, Client())).tokens

    async def main() -> None:
        again(folder)
        engine = await VllmEngine.start(VllmConfig(server.url, weights=folder, dtype="float32", device="cpu", slots=2))
        try:
            first, process, settings = await ids(engine), engine.process, dict(engine.settings)
            assert await ids(engine) == first
            assert engine.process == process

            server.stop()
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await engine.ready()
            again(folder)
            assert await ids(engine) == first
            assert engine.process != process
            assert engine.settings == settings

            again(folder, "--max-num-seqs", "16", dtype="bfloat16")
            for _ in range(2):
                with pytest.raises(EngineUnavailable, match="gives other numbers than before"):
                    await engine.ready()

            again(write_tiny_hf(tmp_path / "else", seed=1))
            with pytest.raises(EngineUnavailable, match=r"its root was .*tiny' and is .*else'"):
                await engine.ready()

            server.stop()
            server.start(folder, "--max-model-len", "1024")
            with pytest.raises(EngineUnavailable, match="context_tokens was 2048 and is 1024"):
                await engine.ready()

            again(folder)
            assert await ids(engine) == first
            weights = folder / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
            with pytest.raises(WeightsChanged, match=r"model\.safetensors"):
                await engine.ready()
        finally:
            await engine.close()

    asyncio.run(main())
