"""Servers that go wrong in ways vLLM's do, and worse: real process trees, of which nothing may be left."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from mesh.engine import vllm_keeper, vllm_managed
from mesh.engine.vllm_managed import ManagedServer
from mesh.errors import EngineError, EngineFailed, EngineUnsupported

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="managed servers need Linux")

BOUND_S = 60.0
GRACE_S = 0.2

# Each word of its command line but the first is something to start or to do; the first tells this tree's processes.
SERVER = r"""
import os, signal, sys, time

def wait():
    while True:
        signal.pause()

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()

def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    deaf()

def spawn(run):
    if os.fork() == 0:
        run()
        os._exit(0)

def hydra():
    # a head more when it is asked to leave, and a new one for each that falls
    signal.signal(signal.SIGTERM, lambda *_: spawn(daemon))
    while True:
        pid = os.fork()
        if pid == 0:
            deaf()
        os.waitpid(pid, 0)

def leave(*_):
    time.sleep(0.3)
    os.write(1, b"saved everything\n")  # print is not made for a handler
    os._exit(0)

for word in sys.argv[2:]:
    if word in ("deaf", "daemon", "hydra", "wait"):
        spawn(globals()[word])
    elif word == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "leave-when-asked":
        signal.signal(signal.SIGTERM, leave)
    elif word == "share":
        from multiprocessing.shared_memory import SharedMemory
        kept = SharedMemory(create=True, size=1)
        os.write(1, b"shared " + kept.name.encode() + b"\n")
    elif word == "environment":
        for name, value in os.environ.items():
            print(f"{name}={value}")
    elif word == "flood":
        for _ in range(200):
            os.write(1, b"x" * 99_999 + b"\n")
            os.write(2, b"y" * 100_000)
        os.write(1, b"\nthe \x1b[31mlast\x1b[0m \xff line\n")
    elif word == "fail":
        print("(API pid=1) WARNING 1 [a.py:1] may lead to OSError: too many open files")
        print("(Core pid=2) ERROR 1 [b.py:2] ValueError: no such dtype", *range(9), sep="\n")
        print("(API pid=1) RuntimeError: engine died", "a", "b", "c", sep="\n")
    elif word == "exit-3":
        sys.exit(3)
sys.stdout.flush()
os.write(1, b"up\n")
wait()
"""
TREE = ("wait", "deaf", "daemon", "hydra")
TREE_PROCESSES = 7  # the keeper, the server, one each, and the hydra's head


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "vllm"
    path.write_text(f"#!{sys.executable} -IS\n{SERVER}")
    path.chmod(0o755)
    return path


@pytest.fixture
def mark() -> str:
    return f"tree-{secrets.token_hex(8)}"


def living(mark: str) -> dict[int, list[str]]:
    """The processes with this word in their command line; that of a dead one is empty."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in words:
            found[int(name)] = words
    return found


def keeper_of(mark: str) -> int:
    (pid,) = [pid for pid, words in living(mark).items() if vllm_keeper.__file__ in words]
    return pid


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.01)


class Ends(list[EngineError]):
    """What `on_end` was told."""

    async def one(self) -> str:
        await until(lambda: self)
        assert len(self) == 1
        assert isinstance(self[0], EngineFailed)
        return str(self[0])


async def start(program: Path, mark: str, *words: str, grace_s: float = GRACE_S) -> tuple[ManagedServer, Ends]:
    ends = Ends()
    command = [str(program), mark, *words]
    server = await ManagedServer.start(command, env={"PATH": os.defpath}, on_end=ends.append, grace_s=grace_s)
    return server, ends


async def start_tree(program: Path, mark: str, *words: str) -> tuple[ManagedServer, Ends]:
    server, ends = await start(program, mark, *words, *TREE)
    await until(lambda: "up" in server.tail and len(living(mark)) == TREE_PROCESSES)
    return server, ends


@pytest.mark.parametrize("words", [(), ("ignore-term",)], ids=["a server that leaves", "a server that does not"])
def test_stop_leaves_no_process(program: Path, mark: str, words: Sequence[str]) -> None:
    async def scenario() -> None:
        server, ends = await start_tree(program, mark, *words)
        assert server.pid in living(mark)
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        await asyncio.gather(server.stop(), server.stop())
        assert living(mark) == {}
        assert server.ended.is_set()
        await server.stop()
        assert ends == []

    asyncio.run(scenario())


def test_a_server_that_is_asked_to_leave_has_time_to(program: Path, mark: str) -> None:
    async def scenario() -> str:
        server, _ = await start(program, mark, "leave-when-asked", grace_s=BOUND_S)
        await until(lambda: "up" in server.tail)
        await server.stop()
        return server.tail

    assert asyncio.run(scenario()) == "up\nsaved everything"


async def kill_server(server: ManagedServer, mark: str) -> None:
    os.kill(server.pid, signal.SIGKILL)


async def kill_keeper(server: ManagedServer, mark: str) -> None:
    os.kill(keeper_of(mark), signal.SIGKILL)


async def terminate_keeper(server: ManagedServer, mark: str) -> None:
    os.kill(keeper_of(mark), signal.SIGTERM)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (kill_server, "vllm server: ended with SIGKILL; it last said: up"),
        (kill_keeper, "vllm server: its keeper was killed, and the server with it; it last said: up"),
        (terminate_keeper, "vllm server: ended with SIGTERM; it last said: up"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_killed_one_leaves_is_ended_before_the_reason_is_told(
    program: Path, mark: str, act: Callable[[ManagedServer, str], Awaitable[None]], reason: str
) -> None:
    async def scenario() -> None:
        server, ends = await start_tree(program, mark)
        await act(server, mark)
        assert await ends.one() == reason
        assert living(mark) == {}
        assert server.ended.is_set()
        await server.stop()
        assert len(ends) == 1

    asyncio.run(scenario())


def test_a_killed_keeper_is_enough_to_end_a_server_that_does_not_listen(program: Path, mark: str) -> None:
    async def scenario() -> None:
        server, ends = await start_tree(program, mark, "ignore-term")
        await kill_keeper(server, mark)
        await ends.one()
        assert living(mark) == {}

    asyncio.run(scenario())


def test_a_keeper_that_hangs_is_not_waited_for(program: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_managed, "_MARGIN_S", -vllm_keeper.KILL_S)

    async def scenario() -> None:
        server, _ = await start_tree(program, mark)
        os.kill(keeper_of(mark), signal.SIGSTOP)
        await server.stop()
        assert living(mark) == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("act", [kill_server, kill_keeper], ids=lambda value: value.__name__)
def test_shared_memory_of_a_killed_server_is_removed(
    program: Path, mark: str, act: Callable[[ManagedServer, str], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        server, ends = await start_tree(program, mark, "ignore-term", "share")
        memory = Path("/dev/shm", server.tail.partition("shared ")[2].split()[0])
        assert memory.exists()
        await act(server, mark)
        await ends.one()
        assert not memory.exists()

    asyncio.run(scenario())


GATEWAY = """
import asyncio, sys
from mesh.engine.vllm_managed import ManagedServer

async def main():
    server = await ManagedServer.start(sys.argv[1:], env={}, on_end=print, grace_s=0.2)
    print("started", flush=True)
    await server.ended.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_gateway_that_is_killed_takes_its_server_along(program: Path, mark: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", GATEWAY, str(program), mark, *TREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"started\n"
        asyncio.run(until(lambda: len(living(mark)) == TREE_PROCESSES + 1))
        gateway.send_signal(number)
        gateway.wait(BOUND_S)
    asyncio.run(until(lambda: not living(mark)))


def test_a_loop_that_ends_leaves_no_process(program: Path, mark: str) -> None:
    async def forget_to_stop() -> None:
        await start_tree(program, mark)

    asyncio.run(forget_to_stop())
    assert living(mark) == {}


def test_a_start_that_is_cancelled_leaves_no_process(program: Path, mark: str) -> None:
    async def scenario() -> None:
        starting = asyncio.create_task(start(program, mark, *TREE))
        await until(lambda: living(mark))
        starting.cancel()
        try:
            server, _ = await starting
        except asyncio.CancelledError:
            pass
        else:
            await server.stop()
        await until(lambda: not living(mark))

    asyncio.run(scenario())


def test_a_server_that_ends_says_how_and_what_it_said(program: Path, mark: str) -> None:
    async def scenario() -> None:
        server, ends = await start(program, mark, "fail", "exit-3")
        assert await ends.one() == (
            "vllm server: ended with exit code 3; "
            "it last said: (Core pid=2) ERROR 1 [b.py:2] ValueError: no such dtype | "
            "(API pid=1) RuntimeError: engine died | a | b | c"
        )
        assert server.pid > 0

    asyncio.run(scenario())


def test_a_flood_of_output_does_not_hold_the_server_up(program: Path, mark: str) -> None:
    async def scenario() -> None:
        server, ends = await start(program, mark, "flood", "exit-3")
        assert (await ends.one()).endswith("| the ?[31mlast?[0m � line")
        assert len(server.tail) < 210_000
        await server.stop()

    asyncio.run(scenario())


def test_what_a_server_writes_is_logged_for_debugging_only(
    program: Path, mark: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server, _ = await start(program, mark)
        await until(lambda: "up" in server.tail)
        await server.stop()

    with caplog.at_level(logging.DEBUG, logger=vllm_managed.__name__):
        asyncio.run(scenario())
    assert [(r.name, r.levelname, r.message) for r in caplog.records if r.message == "up"] == [
        ("mesh.engine.vllm_managed", "DEBUG", "up")
    ]


def unstartable(kind: str, folder: Path) -> list[str]:
    path = folder / kind
    if kind == "a folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text({"no program": "print", "lost interpreter": "#!/nowhere/python\n"}.get(kind, "#!/bin/sh\n"))
        path.chmod(0o644 if kind == "not executable" else 0o755)
    return [str(path)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "no such file or directory"),
        ("not executable", "permission denied"),
        ("a folder", "permission denied"),
        ("lost interpreter", "no such file or directory"),
        ("no program", "exec format error"),
    ],
)
def test_a_program_that_cannot_run_is_named(tmp_path: Path, mark: str, kind: str, words: str) -> None:
    ends = Ends()
    command = [*unstartable(kind, tmp_path), mark]
    with pytest.raises(EngineFailed) as refused:
        asyncio.run(ManagedServer.start(command, env={}, on_end=ends.append))
    assert str(refused.value) == f"vllm server: {command[0]}: cannot be started: {words}"
    assert ends == []
    assert living(mark) == {}


def test_a_command_that_no_system_takes_is_refused() -> None:
    with pytest.raises(EngineFailed, match="cannot be started"):
        asyncio.run(ManagedServer.start(["vllm", "a\0b"], env={}, on_end=Ends().append))


def test_a_keeper_that_cannot_run_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm_keeper, "__file__", str(tmp_path / "nothing.py"))
    with pytest.raises(EngineFailed, match=r"its keeper ended with exit code 2; it last said: .*nothing\.py"):
        asyncio.run(ManagedServer.start(["vllm"], env={}, on_end=Ends().append))


def test_another_system_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(EngineUnsupported, match="start it yourself"):
            await ManagedServer.start(["vllm"], env={}, on_end=Ends().append)

    asyncio.run(scenario())


def test_a_server_gets_the_environment_it_is_given_and_no_other(program: Path, mark: str) -> None:
    async def scenario() -> str:
        server, _ = await start(program, mark, "environment")
        await until(lambda: "up" in server.tail)
        await server.stop()
        return server.tail

    got = dict(line.split("=", 1) for line in asyncio.run(scenario()).splitlines() if "=" in line)
    assert len(got.pop("MESH_VLLM_SERVER")) == 32
    got.pop("LC_CTYPE", None)  # Python's own, where no locale is set
    assert got == {"PATH": os.defpath, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
