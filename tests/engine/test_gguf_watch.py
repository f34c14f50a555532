"""Children that hang: stopped by a signal, they keep their pipes open and say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.gguf_watch import PING, SERVES, Watch
from mesh.errors import EngineFailed, EngineUnavailable, UsageError
from tests.support.processes import hang
from tests.support.serves import Sink, serve
from tests.support.tiny_gguf import FIRST_BYTE_TOKEN

PROMPT = [FIRST_BYTE_TOKEN + byte for byte in b"Once upon a time"]


async def in_mid_serve(engine: GgufEngine) -> str:
    sink = Sink()
    serving = asyncio.create_task(serve(engine, PROMPT, 2000, sink, ignore_eos=True))
    waiting = asyncio.create_task(serve(engine, PROMPT, 2000, ignore_eos=True))
    await sink.first.wait()
    hang(engine.pid)
    failures = await asyncio.gather(serving, waiting, return_exceptions=True)
    assert all(isinstance(failure, EngineFailed) for failure in failures)
    return str(failures[0])


async def in_a_text(engine: GgufEngine) -> str:
    hang(engine.pid)
    with pytest.raises(EngineFailed) as caught:
        await engine.encode("a", special=False)
    return str(caught.value)


async def while_idle(engine: GgufEngine) -> str:
    hang(engine.pid)
    while engine.pid is not None:
        await asyncio.sleep(0.05)
    return "its ping"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [(in_mid_serve, "said nothing of its serves for 1 s"), (in_a_text, "its texts"), (while_idle, "its ping")],
)
def test_a_child_that_hangs_is_killed_and_started_again(
    tiny: Path, scenario: Callable[[GgufEngine], Awaitable[str]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(tiny, "m", silent_s=1.0))
        try:
            process = engine.process
            reason = await scenario(engine)
            assert words in reason
            assert words in caplog.text
            with pytest.raises(EngineUnavailable, match="is started again"):
                await engine.ready()
            await engine.until_up()
            await engine.ready()
            assert engine.process != process
            assert len((await serve(engine, PROMPT, 5, ignore_eos=True)).tokens) == 5
        finally:
            await engine.close()

    asyncio.run(main())


def test_a_long_prompt_gives_a_sign_of_life_with_each_batch(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    taken = GgufEngine._on_message
    monkeypatch.setattr(GgufEngine, "_on_message", lambda self, m: said.append(m["op"]) or taken(self, m))

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(tiny, "m", slots=1, n_ubatch=64))
        try:
            said.clear()
            await serve(engine, PROMPT * 40, 1)
        finally:
            await engine.close()

    asyncio.run(main())
    # 640 ids in batches of 64, the last of which gives the token
    assert [op for op in said if op != "pong"] == ["alive"] * 9 + ["step", "done"]


def test_a_batch_may_take_as_long_as_the_model_needs() -> None:
    config = GgufConfig(Path("m"), "m", silent_s=10.0, n_ubatch=64, slots=1)
    assert config.silence_of(10_000_000) == 10.0
    assert config.silence_of(1_000_000_000) == 4 * 65
    for silent_s in (0.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match="silent_s"):
            GgufConfig(Path("m"), "m", silent_s=silent_s)


def test_who_owes_nothing_is_asked_and_who_answers_is_left_alone() -> None:
    async def main() -> tuple[int, str]:
        hung: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        pings = 0

        def ping() -> None:
            nonlocal pings
            pings += 1
            if pings < 20:  # far more looks than it may be silent for
                watch.settle(PING)

        watch = Watch(0.08, hung=hung.set_result, ping=ping)
        watch.start()
        reason = await hung
        return pings, reason

    pings, reason = asyncio.run(main())
    assert pings == 20
    assert "its ping for 0.08 s" in reason


def test_signs_keep_a_watch_quiet_and_their_absence_does_not() -> None:
    async def main() -> tuple[int, str]:
        hung: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watch = Watch(0.08, hung=hung.set_result, ping=lambda: None)
        watch.owe(SERVES)
        for looks in range(50):
            watch._look()
            watch.sign(SERVES)
            if hung.done():
                return looks, await hung
        assert not hung.done()
        looks = 0
        while not hung.done():
            watch._look()
            looks += 1
        watch.stop()
        return looks, await hung

    looks, reason = asyncio.run(main())
    assert looks == 9
    assert "its serves" in reason
