"""A child of the engine as a process: started, listened to, stopped, and its end put into words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mesh.engine import gguf_frames as frames
from mesh.errors import EngineError, EngineFailed, EngineUnsupported

# The child gets our module path as it is, wherever this package was found, and nothing else of the current folder.
BOOT = "import sys; sys.path[:] = sys.argv[2:]; from mesh.engine.gguf_child import main; main()"
_TAIL_BYTES = 4096
_TAIL_LINES = 3
_READ_BYTES = 1 << 16
_CLOSE_S = 5.0
_RESTART_FIRST_S = 0.25
_RESTART_MOST_S = 60.0

Message = dict[str, Any]


class ChildProcess:
    """One child, from its start to its end. `on_message` gets every frame but `fault`, `on_end` the reason, once, when
    the process is gone. Both run on the event loop; neither runs after `close` returned. What it printed last is in
    `said` and not in the reason, which clients get to see."""

    def __init__(
        self, process: Process, on_message: Callable[[Message], None], on_end: Callable[[EngineError], None],
        reader: frames.FrameReader, name: str,
    ) -> None:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._on_message, self._on_end = on_message, on_end
        self._reader, self._name = reader, name
        self._why_killed: EngineError | None = None
        self._tail = bytearray()
        self._fault: Message | None = None
        self._ended = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, on_message: Callable[[Message], None], on_end: Callable[[EngineError], None], *, boot: str = BOOT,
        env: Mapping[str, str] | None = None, known: frames.Known = frames.FROM_CHILD,
        max_bytes: int = frames.MAX_FRAME_BYTES, name: str = "engine", processors: Collection[int] | None = None,
    ) -> ChildProcess:  # fmt: skip
        """`boot` is the Python text that the child runs, `env` its environment (None: that of this process), `known`
        and `max_bytes` what it may say, `processors` the ones that it may use (None: those of this process). On Linux
        it dies with the thread that calls this, so that is the event loop's and no pool's."""
        if processors is not None:
            boot = f"import os; os.sched_setaffinity(0, {sorted(processors)}); {boot}"
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", boot, str(os.getpid()), *sys.path,
                stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env,
            )  # fmt: skip
        except OSError as e:
            raise EngineFailed(f"{name} process: cannot be started: {e}") from None
        return cls(process, on_message, on_end, frames.FrameReader(known, max_bytes=max_bytes), name)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Never waits: what is sent is small and the child reads at once. To a child that is gone it is lost, and
        `on_end` says so."""
        data = frames.pack_frame(dict(message))
        if not self._ended and not self._stdin.is_closing():
            self._stdin.write(data)

    def kill(self, reason: EngineError) -> None:
        """End it at once. `on_end` gets `reason` when it is gone."""
        self._why_killed = self._why_killed or reason
        self._kill()

    async def close(self) -> None:
        """End it: it leaves when its pipe closes, and is killed if it has not done so in time."""
        self._on_message, self._on_end = _ignore, _ignore
        self._stdin.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(self._reading)
        except TimeoutError:
            self._kill()
        await self._reading

    async def _read(self) -> None:
        reader = self._reader
        listening = asyncio.create_task(self._listen())
        broken: EngineError | None = None
        orderly = False
        try:
            while data := await self._stdout.read(_READ_BYTES):
                for message in reader.feed(data):
                    if message["op"] == "fault":
                        self._fault = message
                    else:
                        self._on_message(message)
            reader.finish()
            orderly = True
        except EngineError as e:
            broken = e
        finally:
            # it speaks nonsense, or the loop ends and nobody closed the engine
            if not orderly:
                self._kill()
            code = await self._gone()
            await listening
            self._stdin.close()
            with contextlib.suppress(OSError):
                await self._stdin.wait_closed()
            self._ended = True
        if self._why_killed is not None:
            self._on_end(self._why_killed)
        elif self._fault is None:
            self._on_end(broken or EngineFailed(f"{self._name} process: ended with {_how(code)}"))
        else:
            kind = EngineUnsupported if self._fault["kind"] == "unsupported" else EngineFailed
            self._on_end(kind(self._fault["reason"]))

    async def _gone(self) -> int:
        """Its exit code. A process that closed its output has nothing more to say and gets a moment to leave."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                return await self._process.wait()
        except TimeoutError:
            self._kill()
            return await self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _listen(self) -> None:
        while data := await self._stderr.read(_READ_BYTES):
            self._tail += data
            del self._tail[:-_TAIL_BYTES]

    @property
    def said(self) -> str:
        """The last lines that it printed, fit to follow a message; empty where it printed none. For the operator: it
        is the library's text, with paths in it."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        said = " | ".join("".join(c if c.isprintable() else "?" for c in line) for line in lines[-_TAIL_LINES:])
        return f"; it last said: {said}" if said else ""


def restart_delay_s(failures: int) -> float:
    """Seconds to wait before a child is started again, after `failures` others in a row."""
    return float(min(_RESTART_FIRST_S * 2 ** min(failures, 16), _RESTART_MOST_S))


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _ignore(_: object) -> None:
    pass
