"""A server of our own that does not get to the point of answering."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.engine import excess
from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.engine.vllm_managed import ManagedServer
from mesh.errors import EngineError, EngineFailed, UsageError

LOADING = """
import signal
print("loading shard 1 of 4", flush=True)
signal.pause()
"""


def test_a_server_that_takes_too_long_to_start_is_ended_with_its_last_words(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable} -IS\n{LOADING}")
    program.chmod(0o755)
    servers: list[ManagedServer] = []

    async def launch(on_end: Callable[[EngineError], None]) -> ManagedServer:
        server = await ManagedServer.start([str(program)], env={"PATH": os.defpath}, on_end=on_end)
        servers.append(server)
        async with asyncio.timeout(60):
            while "loading" not in server.tail:
                await asyncio.sleep(0.01)
        return server

    async def main() -> None:
        # nobody listens on the port of discarded messages
        with pytest.raises(EngineFailed, match=r"did not answer within 1 s; it last said: loading shard 1 of 4$"):
            await VllmEngine.start(VllmConfig("http://127.0.0.1:9", start_s=1), launch=launch)
        (server,) = servers
        assert server.ended.is_set()

    asyncio.run(main())


def test_a_server_that_takes_more_than_it_may_is_ended_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excess, "LOOK_S", 0.01)
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable} -IS\n{LOADING}")
    program.chmod(0o755)
    servers: list[ManagedServer] = []
    asked: list[int] = []

    async def launch(on_end: Callable[[EngineError], None]) -> ManagedServer:
        servers.append(await ManagedServer.start([str(program)], env={"PATH": os.defpath}, on_end=on_end, grace_s=0.5))
        return servers[0]

    def too_much(pid: int) -> str | None:
        asked.append(pid)
        return "too much" if len(asked) == 3 else None

    async def main() -> None:
        with pytest.raises(EngineFailed, match=r"^vllm server: too much$"):
            await VllmEngine.start(VllmConfig("http://127.0.0.1:9", start_s=600, excess=too_much), launch=launch)
        (server,) = servers
        assert server.ended.is_set()
        assert asked == [server.pid] * 3

    asyncio.run(main())


AFFINITY = """
import os, signal
print("may use", sorted(os.sched_getaffinity(0)), flush=True)
signal.pause()
"""


def test_a_server_is_held_to_its_processors(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable} -IS\n{AFFINITY}")
    program.chmod(0o755)
    one = max(os.sched_getaffinity(0))

    async def main() -> None:
        server = await ManagedServer.start([str(program)], env={}, on_end=print, processors=[one])
        async with asyncio.timeout(60):
            while "may use" not in server.tail:
                await asyncio.sleep(0.01)
        assert server.tail == f"may use [{one}]"
        await server.stop()
        with pytest.raises(EngineFailed, match="processors 9999: invalid argument"):
            await ManagedServer.start([str(program)], env={}, on_end=print, processors=[9999])

    asyncio.run(main())


@pytest.mark.parametrize("start_s", [0, 86_401])
def test_a_limit_that_is_none_is_refused(start_s: int) -> None:
    with pytest.raises(UsageError, match=f"start_s is {start_s}, expected 1 to 86400"):
        VllmConfig("http://127.0.0.1:9", start_s=start_s)
