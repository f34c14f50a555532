"""Children that go wrong in ways a right one does not: each is a short Python text run in place of the engine's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from mesh.engine import gguf_frames as frames
from mesh.engine.gguf_process import BOOT, ChildProcess, restart_delay_s
from mesh.errors import EngineError, EngineFailed, EngineUnsupported

DONE = {"op": "done", "serve": 1, "finish": "stop"}


async def outcome_of(boot: str) -> tuple[list[dict[str, Any]], EngineError, str]:
    """What came through, how it ended, and what the child, which is no more, had printed."""
    messages: list[dict[str, Any]] = []
    ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
    child = await ChildProcess.start(messages.append, ended.set_result, boot=boot)
    reason = await ended
    await child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    return messages, reason, child.said


def ends(boot: str) -> tuple[list[dict[str, Any]], EngineError]:
    messages, reason, _ = asyncio.run(outcome_of(boot))
    return messages, reason


def writing(data: bytes, then: str = "") -> str:
    return f"import os, signal, sys; os.write(1, {data!r}); {then}"


def test_what_a_child_said_before_it_died_counts() -> None:
    messages, reason = ends(writing(frames.pack_frame(DONE), "os.kill(os.getpid(), signal.SIGABRT)"))
    assert messages == [DONE]
    assert isinstance(reason, EngineFailed)
    assert "ended with SIGABRT" in str(reason)


def test_the_end_of_what_the_library_printed_is_kept_apart_from_the_reason() -> None:
    boot = "import sys; print('x' * 100_000, 'model.cpp:7: no memory\\x1b[31m', sep='\\n', file=sys.stderr)"
    _, reason, said = asyncio.run(outcome_of(boot))
    assert str(reason) == "engine process: ended with exit code 0"
    assert said.startswith("; it last said: xxx")
    assert said.endswith("| model.cpp:7: no memory?[31m")
    assert len(said) < 5000


@pytest.mark.parametrize(
    "data", [b"GGML_ASSERT failed", bytes(4), frames.pack_frame(DONE).replace(b"finish", b"finito")]
)
def test_a_child_that_speaks_nonsense_is_killed(data: bytes) -> None:
    messages, reason = ends(writing(data, "signal.pause()"))
    assert messages == []
    assert str(reason).startswith("engine pipe: ")


def test_a_child_that_ends_inside_a_frame_broke_its_protocol() -> None:
    _, reason = ends(writing(frames.pack_frame(DONE)[:-1]))
    assert "bytes into a frame" in str(reason)


@pytest.mark.parametrize(("kind", "error"), [("unsupported", EngineUnsupported), ("failed", EngineFailed)])
def test_a_fault_that_a_child_reports_is_the_reason(kind: str, error: type[EngineError]) -> None:
    fault = frames.pack_frame({"op": "fault", "kind": kind, "reason": "why"})
    _, reason = ends(writing(fault, "sys.exit(3)"))
    assert type(reason) is error
    assert str(reason) == "why"


def test_a_child_without_the_library_says_what_to_install() -> None:
    boot = BOOT.replace("from mesh", "sys.modules['xllamacpp'] = None; from mesh", 1)

    async def load() -> EngineError:
        ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        child = await ChildProcess.start(lambda _: None, ended.set_result, boot=boot)
        child.send({"op": "load", "path": "", "settings": {}, "overrides": [], "together_always": False, "checks": {}})
        reason = await ended
        await child.close()
        return reason

    reason = asyncio.run(load())
    assert isinstance(reason, EngineUnsupported)
    assert "extra `gguf`" in str(reason)


def test_a_child_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.engine.gguf_process._CLOSE_S", 0.1)

    async def close() -> int:
        child = await ChildProcess.start(lambda _: None, lambda _: None, boot="import signal; signal.pause()")
        await child.close()
        return child.pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(close()), 0)


def test_the_child_leaves_when_its_pipe_closes() -> None:
    command = [sys.executable, "-P", "-c", BOOT, str(os.getpid()), *sys.path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_child_leaves_when_it_was_born_too_late() -> None:
    command = [sys.executable, "-P", "-c", BOOT, "1", *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.wait(60) == 0


def test_the_child_prints_where_it_failed_and_no_value() -> None:
    boot = BOOT.replace("main()", "Child.run = lambda self: {}['the prompt']; main()")
    boot = boot.replace("import main;", "import Child, main;")
    command = [sys.executable, "-P", "-c", boot, str(os.getpid()), *sys.path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"KeyError at <string>:1" in done.stderr
    assert b"the prompt" not in done.stderr


def test_each_death_in_a_row_is_followed_by_a_longer_wait() -> None:
    assert [restart_delay_s(failures) for failures in (0, 1, 2, 7, 8, 10**6)] == [0.25, 0.5, 1, 32, 60, 60]
