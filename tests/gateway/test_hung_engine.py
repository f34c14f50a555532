"""What a client and an operator see of an engine that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.engine import gguf_process
from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.gateway.serving import CHAT, Ahead, ask, house, run_ahead
from tests.support.processes import hang
from tests.support.tiny_gguf import write_tiny_gguf


def test_a_stream_over_an_engine_that_hangs_ends_and_the_engine_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_process, "_RESTART_FIRST_S", 60.0)  # it stays down until the test has looked

    async def main(loop: Ahead) -> None:
        model = write_tiny_gguf(tmp_path / "tiny.gguf")
        engine = await GgufEngine.start(GgufConfig(model, "tiny", slots=1, silent_s=2.5))
        async with house(tmp_path / "state", engine, keep_alive_s=1) as gate:
            body = ask(model="tiny", max_tokens=1900, stream=True, ignore_eos=True)
            async with gate.http.post(CHAT, json=body) as response:
                while b"content" not in await response.content.readline():
                    pass
                hang(engine.pid)
                rest = (await response.content.read()).decode()
            assert ": keep-alive" in rest
            assert "said nothing of its serves for 2.5 s" in rest
            ready = await gate.get("/readyz")
            assert ready.status == 503
            assert "is started again" in ready.json["reasons"][0]
            refused = await gate.post(ask(model="tiny"))
            assert refused.code == (503, "engine-unavailable")
            assert f"try in {refused.headers['Retry-After']} s" in refused.error["message"]
            sealed = await gate.last_receipt(1)
            assert sealed.value.outcome.finish == "engine-error"
            loop.ahead += 60
            await engine.until_up()
            assert (await gate.get("/readyz")).status == 200
            assert (await gate.post(ask(model="tiny", max_tokens=3))).status == 200

    run_ahead(main)
