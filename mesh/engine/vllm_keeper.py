"""The process between the gateway and a vLLM server of its own: what the server starts, it ends.

A program of its own that uses the standard library only, run as `python -I -S vllm_keeper.py GRACE_S PROCESSORS
COMMAND...`. Its standard input is a pipe from the gateway, and the pipe's end is the order to stop, so that a gateway
that was killed stops its server too. Its standard output tells the gateway what became of the server, a line each:

    started PID        failed WORDS        ended CODE (negative: a signal)        left PIDS        gone

Its standard error is the server's output. Every process that loses its parent below here becomes a child of this one
(Linux calls that a subreaper), however it was detached, so the kernel itself says when nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

# How long to go on killing what does not die: a process inside a driver may take a while, or never come back.
KILL_S = 30.0
_TRACKER_S = 1.0
_AGAIN_S = 0.02
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Seen(NamedTuple):
    """A process as /proc shows it. A dead one is a zombie that nobody has waited for yet."""

    parent: int
    session: int
    dead: bool


def processes() -> dict[int, Seen]:
    """All that this process may see, by process id. No instant of the system: some start and end while it reads."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # the name of the program stands in brackets, and may hold some
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                found[int(name)] = Seen(int(parent), int(session), state in (b"Z", b"X"))
    return found


def below(roots: Collection[int], seen: Mapping[int, Seen]) -> list[int]:
    """The living descendants of `roots`, parents first: a parent that is killed first starts no other in time."""
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.parent, []).append(pid)
    queue = list(roots)
    for pid in queue:
        queue += children.pop(pid, ())
    return [pid for pid in queue[len(roots) :] if not seen[pid].dead]


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(pids: Sequence[int], late_s: float) -> None:
    """Kill all, `late_s` seconds after it was time to. Python's resource tracker goes last: it removes the shared
    memory of those that were killed, once they are gone, and then leaves by itself."""
    send(signal.SIGKILL, [pid for pid in pids if late_s > _TRACKER_S or not _is_tracker(pid)])


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


def spelled(processors: Collection[int] | None) -> str:
    """The processors that a server may use, as an argument: `0,1`, or `-` for all."""
    return "-" if processors is None else ",".join(map(str, sorted(processors)))


def main() -> int:
    grace_s, processors, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return _fail("this kernel has no child subreaper")
    if processors != "-":
        try:
            os.sched_setaffinity(0, map(int, processors.split(",")))  # all that comes from here inherits it
        except OSError as e:
            return _fail(f"processors {processors}: {(e.strerror or str(e)).lower()}")
    # should anyone else hold the pipe open, this still says that the gateway's thread is gone
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    keeper = Keeper(grace_s)
    mine = os.getpid()

    def die_with_keeper() -> None:
        # asked to and not killed: vLLM then takes its own processes along, which nobody would look for any more if
        # the gateway was killed together with this process
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != mine:
            os._exit(1)

    try:
        # a session of its own, so that no terminal reaches it and its processes can be told by it; what it writes
        # goes where this process's errors go, to the gateway, without passing through here
        server = subprocess.Popen(  # noqa: S603 - the operator names the program
            command, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True, preexec_fn=die_with_keeper
        )
    except OSError as e:
        return _fail((e.strerror or str(e)).lower())
    _say(f"started {server.pid}")
    return keeper.follow(server.pid)


class Keeper:
    """Waits for the server's end or the order to stop, then sees that nothing is left."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._server = 0
        self._ended = False
        self._pipe_open = True
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # handlers, and no mask or SIG_IGN, which the server would inherit
        for number in (signal.SIGCHLD, *_STOPPING):
            signal.signal(number, lambda *_: None)

    def follow(self, server: int) -> int:
        """The exit status of this process."""
        self._server = server
        asked = False
        while self._reap() and not self._ended and not asked:
            asked = self._wait(None)
        # the number stays this group's as long as one process is in it, also after the server itself is gone
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server, signal.SIGTERM)
        # Orphans get as long as a whole server: vLLM's workers take seconds to leave.
        kill_at = time.monotonic() + self._grace_s
        while self._reap():
            left_s = kill_at - time.monotonic()
            if left_s > 0:
                self._wait(left_s)
                continue
            remaining = below([os.getpid()], processes())
            if left_s < -KILL_S:
                _say("left " + ",".join(map(str, remaining)))
                return 1
            kill(remaining, -left_s)
            self._wait(_AGAIN_S)
        _say("gone")
        return 0

    def _reap(self) -> bool:
        """Take leave of the children that ended. Whether there are others is the kernel's word, not a look around."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server and not self._ended:
                self._ended = True
                _say(f"ended {os.waitstatus_to_exitcode(status)}")

    def _wait(self, timeout_s: float | None) -> bool:
        """Until a child ends, the order to stop comes (then true) or the time is over."""
        watched = [self._woken, 0] if self._pipe_open else [self._woken]
        ready = select.select(watched, [], [], timeout_s)[0]
        if 0 in ready:
            try:
                self._pipe_open = bool(os.read(0, 4096))
            except OSError:
                self._pipe_open = False
        numbers = os.read(self._woken, 4096) if self._woken in ready else b""
        return not self._pipe_open or any(number in numbers for number in _STOPPING)


def _fail(words: str) -> int:
    _say(f"failed {words}")
    return 1


def _say(line: str) -> None:
    # a gateway that is gone hears nothing, and that is no reason to leave its server running
    with contextlib.suppress(OSError):
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
