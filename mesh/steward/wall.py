"""The time on the wall, which receipts carry as a label: it may be set at any moment, and that is noted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mesh.meter.clock import boottime

STEP_NS = 1_000_000_000  # what keeps a clock right moves it by less, and slowly

log = logging.getLogger(__name__)


class WallClock:
    """Unix time in nanoseconds, as `clock_ns` says. Where that has moved by over a second against the clock that nobody
    can set, since it was first read or since that was last said, a line of the log says by how much. `steady_ns` is
    that clock."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = boottime) -> None:
        self._clock_ns, self._steady_ns = clock_ns, steady_ns
        self._ahead_ns = clock_ns() - steady_ns()

    def __call__(self) -> int:
        now_ns = self._clock_ns()
        ahead_ns = now_ns - self._steady_ns()
        stepped_ns = ahead_ns - self._ahead_ns
        if not -STEP_NS <= stepped_ns <= STEP_NS:
            self._ahead_ns = ahead_ns
            log.warning(
                "the wall clock was set %s by %.3f s: receipts say its new time, and their durations and joules are not"
                " made from it", "forward" if stepped_ns > 0 else "back", abs(stepped_ns) / 1e9,
            )  # fmt: skip
        return now_ns
