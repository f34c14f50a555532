"""One window of energy, from its beginning to its figure, beside other libraries on the same powercap tree; and what it
costs to keep looking while serves run.

A window of ours is one serve's: begun and ended at readings in common, divided among all that are open, and
made a value that a receipt can hold. As in a gateway under load many are open at once, which begin and end one after
the other: the first of them takes a reading, the rest find it fresh until it is too old; the others read the files
for each window. Each of ours is long enough to have a figure, which is checked. The counters move about every
millisecond, as a processor's do, turned by a process of its own. Each side counts the same zones. `WINDOWS.md` has the
cases that this leaves out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides
from bench.scratch import scratch
from bench.venvs import python_of
from mesh.cli.loop import loop_of
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.meter.rapl import RaplMeter

_T = TypeVar("_T")
_PROGRAM = Path(__file__).parent.parent / "peers" / "energy_windows.py"
_CALLERS = 64
_TRIES = 5  # of a round, where a busy machine let the counters stand
_POLL_S = 4.0
_BUDGET_PERCENT = 0.5
_TURN = """
import itertools, os, sys, time
files = [os.open(path, os.O_WRONLY) for path in sys.argv[1:]]
for uj in itertools.count(10**9, 15_000):
    for file in files: os.pwrite(file, b"%012d\\n" % uj, 0)
    if uj == 10**9: print(flush=True)
    time.sleep(0.001)
"""


@contextmanager
def _tree() -> Iterator[Path]:
    """One package with its memory, both as the class folder shows them and as the devices' folder does."""
    with scratch("powercap") as root:
        package = root / "intel-rapl" / "intel-rapl:0"
        memory = package / "intel-rapl:0:0"
        memory.mkdir(parents=True)
        for zone, name in ((package, "package-0"), (memory, "dram")):
            (zone / "name").write_text(f"{name}\n")
            (zone / "energy_uj").write_text(f"{10**9:012d}\n")
            (zone / "max_energy_range_uj").write_text("262143328850\n")
            (root / zone.name).symlink_to(zone)
        (root / "intel-rapl" / "subsystem").symlink_to(root)
        files = [str(zone / "energy_uj") for zone in (package, memory)]
        with subprocess.Popen([sys.executable, "-c", _TURN, *files], stdout=subprocess.PIPE) as turning:
            assert turning.stdout is not None
            try:
                turning.stdout.readline()  # from now on they move, which a meter has to see as it is made
                yield root
            finally:
                turning.terminate()


@dataclass(frozen=True, slots=True)
class _Ours:
    """`metering` is measured. `beside` passes the time while its windows last: a machine that did something else, or
    slept, would be cold at their end, which it never is for the others' windows."""

    metering: Metering
    beside: Metering
    lasting_ns: int

    def round(self, windows: int) -> float:
        for _ in range(_TRIES):
            spent_ns, figures = _run(self._windows(windows))
            if figures >= windows * 9 // 10:
                return spent_ns / windows / 1000
        raise RuntimeError(f"{figures} of {windows} windows had a figure: the counters stood still")

    async def _windows(self, windows: int) -> tuple[int, int]:
        """The CPU time of all threads together at their beginnings and ends, and how many of them had a figure."""
        spent_ns = figures = 0
        for turn in range(0, windows, _CALLERS):
            serve_ids = [number.to_bytes(16, "big") for number in range(turn, min(turn + _CALLERS, windows))]
            spent_ns -= time.process_time_ns()
            await _begin(self.metering, serve_ids)
            spent_ns += time.process_time_ns()
            until_ns = time.monotonic_ns() + self.lasting_ns
            while time.monotonic_ns() < until_ns:
                await _begin(self.beside, serve_ids)
                await _end(self.beside, serve_ids)
            spent_ns -= time.process_time_ns()
            figures += await _end(self.metering, serve_ids)
            spent_ns += time.process_time_ns()
        return spent_ns, figures


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """On the loop that the gateway has as it is installed."""
    with asyncio.Runner(loop_factory=loop_of(None)) as runner:
        return runner.run(work)


async def _begin(metering: Metering, serve_ids: Sequence[bytes]) -> None:
    for serve_id in serve_ids:
        if not metering.begin_nowait(serve_id, "m"):
            await metering.begin(serve_id, "m")


async def _end(metering: Metering, serve_ids: Sequence[bytes]) -> int:
    figures = 0
    for serve_id in serve_ids:
        energy = metering.end_nowait(serve_id) or await metering.end(serve_id)
        metering.sealed(serve_id)
        figures += energy.uj is not None
    return figures


@contextmanager
def _ours(root: Path, boundary: str) -> Iterator[_Ours]:
    meters = [RaplMeter(root, boundary=boundary) for _ in range(2)]
    meterings = [Metering([meter]) for meter in meters]
    try:
        for metering in meterings:
            metering.start()
        # twice the interval of the counters is resolved; the rest is for a process that turns them late
        resolution_ns = max(domain.resolution_ns for meter in meters for domain in meter.domains())
        yield _Ours(meterings[0], meterings[1], 3 * resolution_ns)
    finally:
        for metering in meterings:
            metering.close()


@contextmanager
def _sides(plan: Plan, *, library: str, requirement: str, boundary: str) -> Iterator[Sides]:
    with _tree() as root, _ours(root, boundary) as mine:
        ours = partial(mine.round, max(_CALLERS, plan.cpu_calls))
        try:
            python = python_of(library.lower(), requirement)
        except PeerMissing as e:
            yield Sides(ours, e)
            return
        command = [str(python), "-I", str(_PROGRAM), library, str(root)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as peer:
            version = _ask(peer, library)
            few = max(16, plan.cpu_calls // 10)
            yield Sides(ours, lambda: int(_ask(peer, library, few)) / few / 1000, f"{library} {version}")


def _ask(peer: subprocess.Popen[str], library: str, windows: int | None = None) -> str:
    assert peer.stdin is not None
    assert peer.stdout is not None
    if windows is not None:
        peer.stdin.write(f"{windows}\n")
        peer.stdin.flush()
    answer = peer.stdout.readline().strip()
    if not answer:
        raise RuntimeError(f"{library}'s process ended with exit {peer.wait()}")
    return answer


@contextmanager
def _polling(plan: Plan) -> Iterator[Sides]:
    """Percent of one core, beside the bound that was set."""

    def ours() -> float:
        return _run(_polled())

    yield Sides(ours, lambda: _BUDGET_PERCENT, None)


async def _polled() -> float:
    metering = Metering([CpuTimeMeter("m", os.getpid, 10**7)])
    metering.start()
    try:
        await metering.begin(bytes(16), "m")
        cpu, wall = time.process_time_ns(), time.monotonic_ns()
        await asyncio.sleep(_POLL_S)
        return 100 * (time.process_time_ns() - cpu) / (time.monotonic_ns() - wall)
    finally:
        metering.close()


def _comparison(library: str, requirement: str, bound: float, what: str, boundary: str = "package+dram") -> Comparison:
    return Comparison(
        name=f"energy window vs {library}",
        unit="us CPU",
        ours=f"begin and end of a serve's window, {_CALLERS} callers (Metering over RaplMeter), all threads together",
        peer=what,
        goal=Goal("<=", bound),
        sides=partial(_sides, library=library, requirement=requirement, boundary=boundary),
        limit="a beginning, an end and a seal are eighty steps of Python with two locks and four clocks, 2.6 us where"
        " the machine is quick and 4.6 where it is slow, and two or three readings with their division and figures are"
        " the rest (WINDOWS.md)",
    )


PYJOULES = _comparison(
    "pyJoules", "pyJoules==0.5.1", 0.2, "EnergyMeter.start, stop and get_trace over one package and its memory"
)
ZEUS = _comparison(
    "zeus", "zeus==0.16.0", 0.1, "ZeusMonitor.begin_window and end_window over one package and its memory"
)
CODECARBON = _comparison(
    "codecarbon",
    "codecarbon==3.3.2",
    0.002,
    "EmissionsTracker.start_task and stop_task in process mode, over one package",
    "package",
)
POLLING = Comparison(
    name="polling while serves run vs its budget",
    unit="% of a core",
    ours="the CPU-time meter on one process, read as often as it wants to be",
    peer=f"{_BUDGET_PERCENT} % of a core, the bound",
    goal=Goal("<=", 1.0),
    sides=_polling,
)
