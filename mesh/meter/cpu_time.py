"""CPU time as an estimate of energy: the CPU seconds of an engine's process tree times configured watts.

Nothing is measured but time, so the domain is always modelled. The watts are the operator's statement of what one busy
core draws, and stand in the receipt's method: `cpu-time@15W`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from mesh.errors import MeterError
from mesh.meter.protocol import Domain, Reading

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ATTEMPTS = 3

# A process as this meter sees it: when it started (tells a reused pid apart) and its clock ticks, user + system, its
# own and those of the children that it waited for.
_Process = tuple[int, int]


class CpuTimeMeter:
    """The living process tree of `pid`, asked anew each time, so that a restarted engine is followed. `watts_u` is in
    millionths of a watt, per busy core. Raises MeterError for watts that are no estimate of anything.

    The counter never falls: what a process that left the tree had counted stays counted. A restart or a lost process
    is a gap in the readings, since its last moments went unseen.
    """

    def __init__(
        self,
        recipe_id: str,
        pid: Callable[[], int | None],
        watts_u: int,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if watts_u <= 0:
            raise MeterError(f"cpu-time meter of {recipe_id!r}: watts must be above 0, got {watts(watts_u)}")
        self._pid = pid
        self._watts_u = watts_u
        self._now_ns = monotonic_ns
        self._domain = Domain(
            name=f"cpu-time:{recipe_id}",
            method=f"cpu-time@{watts(watts_u)}W",
            resolution_ns=10**9 // _TICKS_PER_S,
            engines=frozenset({recipe_id}),
            modelled=True,
        )
        self._root: tuple[int, int] | None = None  # pid and start of the process that is followed
        self._left = 0  # ticks of what is no longer in the tree
        self._seen = 0  # ticks of the tree at the latest reading

    def domains(self) -> Sequence[Domain]:
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        at_ns = self._now_ns()
        pid = self._pid()
        tree = None if pid is None else _tree(pid)
        if pid is None or tree is None:
            return (Reading(self._domain.name, at_ns, None, "no-process"),)
        gap = self._follow(pid, tree)
        uj = (self._left + self._seen) * self._watts_u // _TICKS_PER_S
        return (Reading(self._domain.name, at_ns, uj, gap=gap),)

    def close(self) -> None:
        """Nothing is held open between readings."""

    def _follow(self, pid: int, tree: _Process) -> bool:
        """Count the tree; whether something was lost on the way."""
        started, ticks = tree
        gap = False
        if self._root != (pid, started):
            gap = self._root is not None
            self._root = (pid, started)
            self._left += self._seen
        else:
            # A child waited for between two looks is in neither of them for a moment: look again before believing that
            # its time has left the tree, or it would be counted twice.
            for _ in range(_ATTEMPTS):
                if ticks >= self._seen:
                    break
                again = _tree(pid)
                if again is None or again[0] != started:
                    break
                ticks = again[1]
            if ticks < self._seen:
                gap = True
                self._left += self._seen - ticks
        self._seen = ticks
        return gap


def watts(watts_u: int) -> str:
    """Millionths of a watt as the shortest decimal."""
    sign = "-" if watts_u < 0 else ""
    whole, part = divmod(abs(watts_u), 1_000_000)
    return f"{sign}{whole}.{part:06d}".rstrip("0").rstrip(".")


def _tree(pid: int) -> _Process | None:
    """The living process tree as one, None where its root is gone. Parents are read before their children, so that a
    child waited for in between is missed and not counted twice."""
    root = _process(pid)
    if root is None:
        return None
    started, ticks = root
    seen = {pid}
    queue = [pid]
    while queue:
        for child in _children(queue.pop()):
            if child in seen:
                continue
            seen.add(child)
            process = _process(child)
            if process is not None:
                ticks += process[1]
                queue.append(child)
    return started, ticks


def _content(path: str) -> bytes:
    """A small file whole. These are read twenty times a second for months; `open` costs three times as much."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while chunk := os.read(descriptor, 4096):
            content += chunk
        return content
    finally:
        os.close(descriptor)


def process_from_proc(pid: int) -> _Process | None:
    """From /proc: whole ticks, in one read. None where there is no such process, or only its remains."""
    try:
        # The command may hold spaces and brackets; the fields after its last bracket are numbered from 3.
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return None if fields[0] in (b"X", b"x") else (int(fields[19]), sum(map(int, fields[11:15])))
    except (OSError, ValueError, IndexError):
        return None


def children_from_proc(pid: int) -> Iterator[int]:
    """From /proc: each thread's children, without a walk over all processes of the machine."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, _content(f"/proc/{pid}/task/{task}/children").split())
    except (OSError, ValueError):
        return


def process_from_psutil(pid: int) -> _Process | None:
    """The same where there is no /proc."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        seconds = times.user + times.system + getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
        return round(process.create_time() * _TICKS_PER_S), round(seconds * _TICKS_PER_S)
    except psutil.Error:
        return None


def children_from_psutil(pid: int) -> Iterator[int]:
    """The same where the kernel does not list children."""
    try:
        yield from (child.pid for child in psutil.Process(pid).children())
    except psutil.Error:
        return


_process = process_from_proc if os.path.exists("/proc/self/stat") else process_from_psutil
_children = children_from_proc if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else children_from_psutil
