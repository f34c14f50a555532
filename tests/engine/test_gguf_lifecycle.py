"""What becomes of the engine's child, its files and its parent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.errors import EngineFailed, EngineUnavailable, ModelFileError, WeightsChanged
from tests.support.serves import Sink, serve
from tests.support.tiny_gguf import FIRST_BYTE_TOKEN, write_tiny_gguf

PROMPT = [FIRST_BYTE_TOKEN + byte for byte in b"Once upon a time"]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def open_files() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }


async def kill_in_mid_serve(engine: GgufEngine, number: signal.Signals) -> EngineFailed:
    sink = Sink()
    serving = asyncio.create_task(serve(engine, PROMPT, 2000, sink, ignore_eos=True))
    waiting = asyncio.create_task(serve(engine, PROMPT, 2000, ignore_eos=True))
    await sink.first.wait()
    assert engine.pid is not None
    os.kill(engine.pid, number)
    failures = await asyncio.gather(serving, waiting, return_exceptions=True)
    assert all(isinstance(failure, EngineFailed) for failure in failures)
    assert isinstance(failures[0], EngineFailed)
    return failures[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda number: number.name)
def test_a_child_that_dies_fails_its_serves_and_comes_back(
    tiny: Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(tiny, "m"))
        try:
            before, process, pid = await serve(engine, PROMPT, 20), engine.process, engine.pid
            failure = await kill_in_mid_serve(engine, number)
            # the library's last lines are in the log and not in what clients are told
            assert str(failure) == f"engine process: ended with {number.name}"
            assert f"{failure}; it last said: " in caplog.text
            assert engine.pid is None
            with pytest.raises(EngineUnavailable, match=r"started again, try in \d+ s"):
                await engine.ready()
            with pytest.raises(EngineUnavailable):
                await serve(engine, PROMPT, 20)
            await engine.until_up()
            await engine.ready()
            assert await serve(engine, PROMPT, 20) == before
            assert engine.process != process
            assert pid is not None
            assert gone(pid)
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_nothing_is_left_open_or_running(tiny: Path) -> None:
    async def scenario() -> list[int | None]:
        before = open_files()
        engine = await GgufEngine.start(GgufConfig(tiny, "m"))
        pids = [engine.pid]
        await serve(engine, PROMPT, 5)
        await kill_in_mid_serve(engine, signal.SIGKILL)
        await engine.until_up()
        pids.append(engine.pid)
        await engine.close()
        await engine.close()
        assert open_files() == before
        return pids

    for pid in asyncio.run(scenario()):
        assert pid is not None
        assert gone(pid)


def test_closing_fails_the_serves_in_flight(tiny: Path) -> None:
    async def scenario() -> BaseException | None:
        engine = await GgufEngine.start(GgufConfig(tiny, "m", slots=1))
        sink = Sink()
        serving = asyncio.create_task(serve(engine, PROMPT, 2000, sink, ignore_eos=True))
        await sink.first.wait()
        await engine.close()
        await asyncio.wait({serving})
        return serving.exception()

    assert isinstance(asyncio.run(scenario()), EngineFailed)


def test_closing_while_a_child_is_awaited_ends_the_wait(tiny: Path) -> None:
    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(tiny, "m", slots=1))
        await kill_in_mid_serve(engine, signal.SIGKILL)
        waiting = asyncio.create_task(engine.until_up())
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineUnavailable, match="closed"):
            await waiting

    asyncio.run(scenario())


def test_a_start_that_is_cancelled_leaves_no_child(tiny: Path) -> None:
    async def scenario() -> None:
        this = psutil.Process()
        before, others = open_files(), this.children()
        starting = asyncio.create_task(GgufEngine.start(GgufConfig(tiny, "m")))
        while this.children() == others:
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        assert this.children() == others
        await asyncio.get_running_loop().shutdown_default_executor()  # a thread that reads the model ends by itself
        assert open_files() == before

    asyncio.run(scenario())


# Prints the child's process id, then lives until it is killed.
_PARENT = """
import asyncio, sys
from pathlib import Path
from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.support.serves import serve

async def main():
    engine = await GgufEngine.start(GgufConfig(Path(sys.argv[1]), "m"))
    print(engine.pid, flush=True)
    while True:
        await serve(engine, [5, 6, 7], 2000, ignore_eos=True)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs process descriptors to watch a stranger's end")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_no_child_outlives_its_parent(tiny: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", _PARENT, str(tiny)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        watched = os.pidfd_open(child)
        parent.send_signal(number)
        parent.wait(30)
    try:
        assert select.select([watched], [], [], 30)[0], f"process {child} lives on"
    finally:
        os.close(watched)


def test_a_file_replaced_on_disk_is_not_served_until_it_is_digested_again(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")

    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(path, "m", slots=1))
        try:
            before, digest, process = await serve(engine, PROMPT, 20), engine.weights_digest, engine.process
            os.replace(write_tiny_gguf(tmp_path / "other.gguf", seed=2), path)
            with pytest.raises(
                WeightsChanged, match=r"m\.gguf: inode was .*: restart the gateway to digest them again"
            ):
                await engine.ready()
            await engine.redigest()
            await engine.ready()
            after = await serve(engine, PROMPT, 20)
            assert after.tokens != before.tokens
            assert after.outcome.weights_digest == engine.weights_digest != digest
            assert engine.process != process
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_a_file_changed_in_place_or_gone_is_noticed(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")

    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(path, "m", slots=1))
        try:
            os.utime(path)
            with pytest.raises(WeightsChanged, match=r"m\.gguf: mtime_ns was"):
                await engine.ready()
            path.unlink()
            with pytest.raises(WeightsChanged, match=r"m\.gguf: No such file"):
                await engine.ready()
            with pytest.raises(OSError, match="No such file"):
                await engine.redigest()
            with pytest.raises(EngineUnavailable, match="could not be loaded again"):
                await engine.ready()
            write_tiny_gguf(path)
            await engine.redigest()
            await serve(engine, PROMPT, 1)
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_a_child_does_not_come_back_with_other_weights(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")

    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(path, "m", slots=1))
        try:
            os.utime(path)
            await kill_in_mid_serve(engine, signal.SIGKILL)
            with pytest.raises(WeightsChanged):
                await engine.until_up()
            with pytest.raises(WeightsChanged):
                await engine.ready()
        finally:
            await engine.close()

    asyncio.run(scenario())


def test_shards_are_loaded_and_watched_together(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", shards=3)

    async def scenario() -> None:
        engine = await GgufEngine.start(GgufConfig(path, "m", slots=1))
        try:
            assert (await serve(engine, PROMPT, 5)).outcome.tokens_out == 5
            os.utime(tmp_path / "m-00003-of-00003.gguf")
            with pytest.raises(WeightsChanged, match="m-00003"):
                await engine.ready()
        finally:
            await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [0, 3, 1000, 300_000])
def test_a_truncated_file_never_reaches_the_library(tiny: Path, tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        asyncio.run(GgufEngine.start(GgufConfig(path, "m")))


def test_a_file_that_only_the_library_refuses_is_refused_in_its_words(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"blk.0.attn_norm.weight", b"blk.0.attn_mron.weight"))
    with pytest.raises(
        EngineFailed, match=r"could not load it; it last said: .*tensor 'blk\.0\.attn_norm\.weight' not found"
    ):
        asyncio.run(GgufEngine.start(GgufConfig(path, "m")))
