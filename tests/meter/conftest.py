from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pynvml
import pytest

from tests.support.nvml import StubHost, stub_host

# Obeys one line at a time and answers each with one line once it is done.
WORKER = """
import os, signal, subprocess, sys, time
BURN = "import time\\nwhile time.process_time() < {}: pass"
children = []
for line in sys.stdin:
    what, seconds = line.split()
    if what == "burn":
        end = time.process_time() + float(seconds)
        while time.process_time() < end: pass
    elif what == "child":  # burns, and then lives on until released
        code = BURN.format(seconds) + "\\nprint('burnt', flush=True)\\ninput()"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        children.append(child)
    elif what == "release":
        child = children.pop()
        child.communicate("go\\n")
    elif what == "disown":  # from here on the kernel forgets the time of children that end
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("done", flush=True)
"""


class Worker:
    """A real child process that burns CPU on demand."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, what: str, seconds: float = 0) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {seconds}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        """Kill and reap."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.end()


@pytest.fixture
def another_worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.end()


@pytest.fixture
def nvml() -> Iterator[StubHost]:
    """A driver with no card, to be changed; afterwards there is no driver."""
    host = stub_host()
    host.clear()
    yield host
    assert host.open <= 0, "a meter was not closed"
    host.clear(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
