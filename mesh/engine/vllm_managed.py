"""A vLLM server of the mesh's own: started behind a keeper, listened to, its end put into words, its whole tree ended.

Linux only: elsewhere nothing tells a process which others descend from it once their parents are gone.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import re
import secrets
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from mesh.engine import vllm_keeper as keeper
from mesh.errors import EngineError, EngineFailed, EngineUnsupported, UsageError

# How long a server that is asked to leave has to do so.
GRACE_S = 10.0
_TAIL_LINES = 200
_LINE_BYTES = 1000
_SAID_LINES = 3
_READ_BYTES = 1 << 16
_MARGIN_S = 5.0
_AGAIN_S = 0.02
# Names what descends from one server, also after it has left the session and lost its parents.
_MARKER = "MESH_VLLM_SERVER"

_OURS = "the mesh sets it itself"
_PLAIN = "the mesh speaks plain HTTP to its own server"
_LOGS = "it can write prompts or answers into a log"
# (APIServer pid=7) ValueError: ...  or  (EngineCore pid=8) ERROR 11-30 08:04:54 [core.py:9] ValueError: ...
_ERROR = re.compile(r"(\([^)]*\) )?(ERROR .*)?\b[\w.]*(Error|Exception): ")
_REFUSED_FLAGS = {
    "--model": _OURS, "--host": _OURS, "--port": _OURS, "--uds": _OURS, "--api-key": _OURS,
    "--served-model-name": _OURS, "--enable-prompt-tokens-details": _OURS, "--no-enable-prompt-tokens-details": _OURS,
    "--config": "a file of flags could hold what the mesh sets itself",
    "--headless": _PLAIN, "--grpc": _PLAIN, "--grpc-port": _PLAIN,
    "--ssl-keyfile": _PLAIN, "--ssl-certfile": _PLAIN, "--ssl-ca-certs": _PLAIN, "--ssl-cert-reqs": _PLAIN,
    "--ssl-ciphers": _PLAIN, "--enable-ssl-refresh": _PLAIN,
    "--enable-log-requests": _LOGS, "--enable-log-outputs": _LOGS, "--log-error-stack": _LOGS,
    "--log-config-file": _LOGS, "--logging-config": _LOGS,
}  # fmt: skip
_LOGGING_VARIABLES = ("VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_LOGGING_CONFIG_PATH")

log = logging.getLogger(__name__)


def server_command(
    executable: str | Path, model_dir: str | Path, *, host: str = "127.0.0.1", port: int, name: str,
    flags: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The command line of `vllm serve`. `flags` are the operator's; UsageError names the first one that the mesh sets
    itself, or that would write what people ask and get into a log."""
    for what, value in (("model folder", str(model_dir)), ("model name", name)):
        if value.startswith("-"):
            raise UsageError(f"vllm: {what} {value!r}: would be read as a flag")
    for flag in flags:
        _check_flag(flag)
    return [
        str(executable), "serve", str(model_dir), "--host", host, "--port", str(port), "--served-model-name", name,
        "--enable-prompt-tokens-details", *flags,
    ]  # fmt: skip


def _check_flag(flag: str) -> None:
    """vLLM takes underscores for dashes, `--x=y` and `--x.field`, and any beginning of a flag that is clear."""
    name = flag.partition("=")[0].partition(".")[0].replace("_", "-")
    if not name.startswith("--") or name == "--":
        return
    for refused, why in _REFUSED_FLAGS.items():
        if refused.startswith(name):
            short = "" if refused == name else f" (short for {refused})"
            raise UsageError(f"vllm: flag {name}{short} is refused: {why}")


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` and what a server of the mesh must have: it tells nobody that it is used, and fetches nothing unless
    `env` says otherwise. UsageError names a variable that would write prompts or answers into a log."""
    for variable in _LOGGING_VARIABLES:
        if env.get(variable, "").lower() not in ("", "0", "false"):
            raise UsageError(f"vllm: {variable} is set: {_LOGS}")
    return {"HF_HUB_OFFLINE": "1", **env, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class ManagedServer:
    """One server, from its start to the end of the last process it started. Whether it answers is for others to see.

    `on_end` gets the reason when it ended by itself, once, after nothing of it is left; it runs on the event loop, and
    not after `stop` was called. `ended` is set in either case.
    """

    def __init__(self, process: Process, marker: str, on_end: Callable[[EngineError], None], grace_s: float) -> None:
        assert process.stdin is not None
        self._process, self._stdin = process, process.stdin
        self._marker, self._on_end, self._grace_s = marker, on_end, grace_s
        self.ended = asyncio.Event()
        self._pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pid.add_done_callback(_retrieve)  # nobody waits for it any more if the start was cancelled
        self._code: int | None = None
        self._gone = False
        self._left: Sequence[int] = ()
        self._lines = _LastLines()
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        on_end: Callable[[EngineError], None],
        grace_s: float = GRACE_S,
        processors: Collection[int] | None = None,
    ) -> ManagedServer:
        """Returns when the program runs, long before it answers. `env` is all of the environment that it gets, after
        `server_environment`; `processors` are the ones that it may use, None all that this process may. EngineFailed
        says why it cannot run, EngineUnsupported that this system is not Linux.

        The server dies with the thread that calls this, so that is the event loop's and no pool's."""
        if sys.platform != "linux":
            raise EngineUnsupported(
                f"vllm server: managed on Linux only, not on {sys.platform}: start it yourself and give its address"
            )
        marker = secrets.token_hex(16)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", keeper.__file__, str(grace_s), keeper.spelled(processors), *command,
                stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**server_environment(env), _MARKER: marker},
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as e:
            raise EngineFailed(f"vllm server: its keeper cannot be started: {e}") from None
        server = cls(process, marker, on_end, grace_s)
        try:
            await asyncio.shield(server._pid)
        except EngineFailed as e:
            await server.stop()
            raise EngineFailed(f"vllm server: {command[0]}: {e}") from None
        except BaseException:
            await server.stop()
            raise
        return server

    @property
    def pid(self) -> int:
        """Of the API server, the root of the tree; after the end still what it was."""
        return self._pid.result()

    @property
    def tail(self) -> str:
        """The last lines that the server's processes wrote, the oldest first, printable, at most 200 KB."""
        return "\n".join(self._lines.last(_TAIL_LINES))

    async def stop(self) -> None:
        """End the whole tree: asked first, killed after the grace. Nothing of it is left when this returns;
        EngineFailed names the processes that could not be ended, which a driver that hangs can cause."""
        self._on_end = _ignore
        self._stdin.close()
        try:
            async with asyncio.timeout(self._grace_s + keeper.KILL_S + _MARGIN_S):
                await asyncio.shield(self._following)
        except TimeoutError:
            # it was stopped or hangs itself; what it leaves is found as after any other end of it
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.shield(self._following)
        if self._left:
            raise EngineFailed(f"vllm server: processes that could not be ended: {self._left_pids()}")

    async def _follow(self) -> None:
        output = asyncio.create_task(self._read_output())
        try:
            await self._listen()
        except asyncio.CancelledError:
            # the loop ends and nobody stopped the server; the other task was cancelled with this one
            output.cancel()
            await asyncio.wait([output])
            output = asyncio.create_task(self._read_output())
            raise
        finally:
            self._stdin.close()
            await self._see_the_end(output)
            self.ended.set()
        if self._pid.exception() is None:  # else it never started, and `start` says so
            self._on_end(self._reason())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            what, _, rest = line.decode().rstrip("\n").partition(" ")
            if what == "started":
                self._pid.set_result(int(rest))
            elif what == "failed":
                self._gone = True
                self._pid.set_exception(EngineFailed(f"cannot be started: {rest}"))
            elif what == "ended":
                self._code = int(rest)
            elif what == "left":
                self._gone, self._left = True, [int(pid) for pid in rest.split(",") if pid]
            elif what == "gone":
                self._gone = True

    async def _see_the_end(self, output: asyncio.Task[None]) -> None:
        await self._listen()
        if not self._gone:
            await self._sweep()
        if self._left:  # they hold the pipe open
            output.cancel()
        await asyncio.wait([output])
        code = await self._process.wait()
        with contextlib.suppress(OSError):
            await self._stdin.wait_closed()
        if not self._pid.done():
            self._pid.set_exception(EngineFailed(f"its keeper ended with {_how(code)}{self.said}"))

    async def _sweep(self) -> None:
        """The keeper was killed and nobody holds what it held: end the server and what can be told to be its."""
        session = self._pid.result() if self._pid.done() else None
        kill_at = time.monotonic() + self._grace_s
        quiet, asked = 0, set[int]()
        while quiet < 2:  # one look can miss what starts meanwhile
            found = await asyncio.to_thread(_survivors, session, self._marker)
            late_s = time.monotonic() - kill_at
            if found and late_s > keeper.KILL_S:
                self._left = found
                return
            if late_s > 0:
                keeper.kill(found, late_s)
            else:
                keeper.send(signal.SIGTERM, [pid for pid in found if pid not in asked])
                asked.update(found)
            quiet = 0 if found else quiet + 1
            await asyncio.sleep(_AGAIN_S)

    async def _read_output(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_READ_BYTES):
            complete = self._lines.feed(data)
            if log.isEnabledFor(logging.DEBUG):
                for line in complete:
                    log.debug("%s", _printable(line))

    def _reason(self) -> EngineFailed:
        if self._code is None:
            what = "its keeper was killed, and the server with it"
        else:
            what = f"ended with {_how(self._code)}"
        left = f"; processes that could not be ended: {self._left_pids()}" if self._left else ""
        return EngineFailed(f"vllm server: {what}{left}{self.said}")

    def _left_pids(self) -> str:
        return ", ".join(map(str, self._left))

    @property
    def said(self) -> str:
        """What it wrote of its trouble, and last, for the end of a message; empty where it wrote nothing. vLLM says a
        lot while it leaves, so the errors it named come first: the earliest is most often the cause."""
        lines = self._lines.last(_TAIL_LINES)
        errors = [line for line in lines[:-_SAID_LINES] if _ERROR.match(line)]
        said = " | ".join(dict.fromkeys([*errors[:1], *errors[-1:], *lines[-_SAID_LINES:]]))
        return f"; it last said: {said}" if said else ""


class _LastLines:
    """The end of a text that comes in pieces: the last 200 lines, each cut at 1000 bytes; empty ones do not count."""

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=_TAIL_LINES)
        self._begun = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completed."""
        *complete, begun = (self._begun + data).replace(b"\r", b"\n").split(b"\n")
        self._begun = begun[:_LINE_BYTES]
        lines = [line[:_LINE_BYTES] for line in complete if line.strip()]
        self._lines.extend(lines)
        return lines

    def last(self, count: int) -> list[str]:
        begun = [self._begun] if self._begun.strip() else []
        return [_printable(line) for line in [*self._lines, *begun][-count:]]


def _printable(line: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in line.decode(errors="replace").strip())


def _survivors(session: int | None, marker: str) -> list[int]:
    """The living processes of a session, those that were given the marker, and their descendants. vLLM's own overwrite
    the memory that would show the marker, and stay in the session; a helper that left the session shows it."""
    seen = keeper.processes()
    sign = f"{_MARKER}={marker}".encode()
    roots = {pid: at for pid, at in seen.items() if at.session == session or _carries(pid, sign)}
    others = {pid: at for pid, at in seen.items() if pid not in roots}
    return [*(pid for pid, at in roots.items() if not at.dead), *keeper.below(roots, others)]


def _carries(pid: int, sign: bytes) -> bool:
    try:
        return sign in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or is another user's
        return False


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


def _ignore(_: object) -> None:
    pass
