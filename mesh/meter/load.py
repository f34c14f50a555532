"""A load of so many busy cores, and how busy the whole machine was meanwhile.

Each core is kept busy by a process of its own that digests sixteen megabytes over and over: the vector units and the
memory are at work, as they are in an engine's matrices. What an engine's own mix of work draws may still differ.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

_BUSY = """
import os, sys
from blake3 import blake3
data = bytes(16 * 1024 * 1024)
sys.stdout.write("x")
sys.stdout.flush()
while os.getppid() == int(sys.argv[1]): blake3(data).digest()
"""


class Load:
    """So many busy cores from `with` to its end. Raises OSError where a process cannot be started."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._cores):
                command = [sys.executable, "-c", _BUSY, str(os.getpid())]
                self.processes.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603 - our own
                )
            for process in self.processes:
                if process.stdout is None or process.stdout.read(1) != b"x":
                    raise OSError(f"a process that was to keep a core busy ended with {process.wait()}")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Busy:
    """Busy cores of the whole machine, this and every other process's, from its making to a look."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        spent_s: Callable[[], float] | None = None,
    ) -> None:
        self._now_ns = monotonic_ns
        self._spent_s = spent_s or busy_seconds
        self._since_ns, self._since_s = monotonic_ns(), self._spent_s()

    def cores_u(self) -> int:
        """Millionths of a core, on average."""
        elapsed_ns = max(1, self._now_ns() - self._since_ns)
        return max(0, round((self._spent_s() - self._since_s) * 10**15 / elapsed_ns))


def busy_seconds() -> float:
    """CPU seconds that this machine spent on anything since it started. Time that a host took for others is not its."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")))


def logical_cores() -> int:
    return psutil.cpu_count() or 1


def processor_name() -> str:
    """As the kernel calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
