"""CPU time as an estimate of energy: the CPU seconds of an engine's process tree times configured watts.

Nothing is measured but time, so the domain is always modelled. The watts are the operator's statement of what one busy
core draws, and stand in the receipt's method: `cpu-time@15W`; or they were fitted to readings of a wall meter, and then
the method has the band and the rule of the fit beside them: `cpu-time@15.2W+-0.7W by wall-fit/1`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mesh.errors import MeterError
from mesh.meter.process_tree import TICKS_PER_S, process_tree
from mesh.meter.protocol import Domain, Reading

_ATTEMPTS = 3


class CpuTimeMeter:
    """The living process tree of `pid`, asked anew each time, so that a restarted engine is followed. `watts_u` is in
    millionths of a watt, per busy core; `fitted` is the half width of their band and the rule of the fit. Raises
    MeterError for watts that are no estimate of anything.

    The counter never falls: what a process that left the tree had counted stays counted. A restart or a lost process
    is a gap in the readings, since its last moments went unseen: the more seldom the looks, the longer the gap.
    """

    interval_ns = 100_000_000
    prompt = False  # the larger the tree, the longer it takes

    def __init__(
        self,
        recipe_id: str,
        pid: Callable[[], int | None],
        watts_u: int,
        *,
        fitted: tuple[int, str] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if watts_u <= 0:
            raise MeterError(f"cpu-time meter of {recipe_id!r}: watts must be above 0, got {watts(watts_u)}")
        self._pid = pid
        self._watts_u = watts_u
        self._now_ns = monotonic_ns
        self._domain = Domain(
            name=f"cpu-time:{recipe_id}",
            method=cpu_time_method(watts_u, fitted),
            resolution_ns=10**9 // TICKS_PER_S,
            engines=frozenset({recipe_id}),
            modelled=True,
        )
        self._tree = process_tree()
        self._root: tuple[int, int] | None = None  # pid and start of the process that is followed
        self._left = 0  # ticks of what is no longer in the tree
        self._seen = 0  # ticks of the tree at the latest reading

    def domains(self) -> Sequence[Domain]:
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        at_ns = self._now_ns()
        pid = self._pid()
        tree = None if pid is None else self._tree.look(pid)
        if pid is None or tree is None:
            return (Reading(self._domain.name, at_ns, None, "no-process"),)
        gap = self._follow(pid, tree)
        uj = (self._left + self._seen) * self._watts_u // TICKS_PER_S
        return (Reading(self._domain.name, at_ns, uj, gap=gap),)

    def close(self) -> None:
        self._tree.close()

    def _follow(self, pid: int, tree: tuple[int, int]) -> bool:
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
                again = self._tree.look(pid)
                if again is None or again[0] != started:
                    break
                ticks = again[1]
            if ticks < self._seen:
                gap = True
                self._left += self._seen - ticks
        self._seen = ticks
        return gap


def cpu_time_method(watts_u: int, fitted: tuple[int, str] | None = None) -> str:
    """What a receipt says of such a figure."""
    stated = f"cpu-time@{watts(watts_u)}W"
    return stated if fitted is None else f"{stated}+-{watts(fitted[0])}W by {fitted[1]}"


def watts(watts_u: int) -> str:
    """Millionths of a watt as the shortest decimal."""
    sign = "-" if watts_u < 0 else ""
    whole, part = divmod(abs(watts_u), 1_000_000)
    return f"{sign}{whole}.{part:06d}".rstrip("0").rstrip(".")
