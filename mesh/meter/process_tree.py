"""The CPU time of a process and everything below it, looked at twenty times a second for months.

On Linux it comes from /proc. What costs there is not reading but finding: a file opened anew takes three times as long
as one held open, and the list of a process's threads longer than either. So files stay open, and threads are listed
again only when their number changed or one of them is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_HELD = 256  # files kept open, of all processes together; a server of many threads has its others opened anew
_CHUNK = 4096


class ProcessTree(Protocol):
    """Looks at living process trees, one after the other."""

    def look(self, pid: int) -> tuple[int, int] | None:
        """When the process started, which tells a reused pid apart, and the clock ticks of its living tree: user and
        system, own and of children that were waited for. None where it is gone. Parents are read before their children,
        so that a child waited for in between is missed and not counted twice."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Process:
    """What is kept of one process between two looks."""

    files: dict[str, int] = field(default_factory=dict)
    threads: list[str] = field(default_factory=list)
    count: int = 0


class ProcTree:
    """From /proc."""

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}
        self._held = 0

    def look(self, pid: int) -> tuple[int, int] | None:
        root = self._stat(pid)
        if root is None:
            self._keep_only(set())
            return None
        started, ticks, _ = root
        seen = {pid}
        queue = [(pid, root[2])]
        while queue:
            for child in self._children(*queue.pop()):
                if child in seen:
                    continue
                seen.add(child)
                stat = self._stat(child)
                if stat is not None:
                    ticks += stat[1]
                    queue.append((child, stat[2]))
        if len(self._known) > len(seen):
            self._keep_only(seen)
        return started, ticks

    def children(self, pid: int) -> list[int]:
        """The processes that this one's threads started and that live."""
        stat = self._stat(pid)
        return [] if stat is None else self._children(pid, stat[2])

    def close(self) -> None:
        self._keep_only(set())

    def _stat(self, pid: int) -> tuple[int, int, int] | None:
        """Its start, its ticks and the number of its threads; None where there is no such process, or only its
        remains."""
        for _ in range(2):  # a file held open may be that of a process before it with the same pid
            held = pid in self._known
            try:
                # The command may hold spaces and brackets; the fields after its last bracket are numbered from 3.
                fields = self._content(pid, "stat").rpartition(b")")[2].split()
                if fields[0] in (b"X", b"x"):
                    return None
                return int(fields[19]), sum(map(int, fields[11:15])), int(fields[17])
            except (OSError, ValueError, IndexError):
                self._forget(pid)
                if not held:
                    break
        return None

    def _children(self, pid: int, threads: int) -> list[int]:
        process = self._known.setdefault(pid, _Process())
        if process.count == threads:
            with suppress(OSError, ValueError):
                return list(self._of_threads(pid, process.threads))
        try:
            process.threads = os.listdir(f"/proc/{pid}/task")
            process.count = threads
            for gone in process.files.keys() - {"stat", *(f"task/{thread}/children" for thread in process.threads)}:
                self._release(process, gone)
            return list(self._of_threads(pid, process.threads))
        except (OSError, ValueError):
            process.count = 0
            return []

    def _of_threads(self, pid: int, threads: list[str]) -> Iterator[int]:
        for thread in threads:
            yield from map(int, self._content(pid, f"task/{thread}/children").split())

    def _content(self, pid: int, name: str) -> bytes:
        process = self._known.setdefault(pid, _Process())
        descriptor = process.files.get(name)
        if descriptor is not None:
            try:
                return _whole(descriptor)
            except OSError:
                self._release(process, name)
                raise
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if self._held < MAX_HELD:
            process.files[name] = descriptor
            self._held += 1
            return _whole(descriptor)
        try:
            return _whole(descriptor)
        finally:
            os.close(descriptor)

    def _release(self, process: _Process, name: str) -> None:
        os.close(process.files.pop(name))
        self._held -= 1

    def _forget(self, pid: int) -> None:
        process = self._known.pop(pid, None)
        if process is not None:
            for name in list(process.files):
                self._release(process, name)

    def _keep_only(self, pids: set[int]) -> None:
        for pid in self._known.keys() - pids:
            self._forget(pid)


class PsutilTree:
    """The same where there is no /proc, or where the kernel does not list children in it."""

    def look(self, pid: int) -> tuple[int, int] | None:
        try:
            root = psutil.Process(pid)
            started, ticks = round(root.create_time() * TICKS_PER_S), _ticks(root)
        except psutil.Error:
            return None
        for child in self._below(root):
            with suppress(psutil.Error):
                ticks += _ticks(child)
        return started, ticks

    def children(self, pid: int) -> list[int]:
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []

    def close(self) -> None:
        """Nothing is held open."""

    def _below(self, root: psutil.Process) -> list[psutil.Process]:
        with suppress(psutil.Error):
            below: list[psutil.Process] = root.children(recursive=True)
            return below
        return []


def _ticks(process: psutil.Process) -> int:
    times = process.cpu_times()
    seconds: float = (
        times.user + times.system + getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
    )
    return round(seconds * TICKS_PER_S)


def _whole(descriptor: int) -> bytes:
    """A file of /proc from its beginning, as it is now."""
    content = chunk = os.pread(descriptor, _CHUNK, 0)
    while len(chunk) == _CHUNK:
        chunk = os.pread(descriptor, _CHUNK, len(content))
        content += chunk
    return content


def process_tree() -> ProcessTree:
    """The cheaper one that this machine has."""
    return ProcTree() if os.path.exists(f"/proc/self/task/{os.getpid()}/children") else PsutilTree()
