"""Whether the machine slept between two looks: the monotonic clock stands meanwhile, the boot clock runs on."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

SUSPENDED_NS = 100_000_000  # how far one may run ahead of the other, read one after the other, without a suspension


# The clock that runs on while the machine sleeps, where there is one.
boottime: Callable[[], int] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)


def boottime_beside(monotonic_ns: Callable[[], int]) -> Callable[[], int]:
    """The boot clock that goes with a monotonic clock: one that somebody turns by hand never sleeps."""
    return boottime if monotonic_ns is time.monotonic_ns else monotonic_ns


class Sleep:
    """Notices suspensions from one `slept` to the next."""

    def __init__(self, boottime_ns: Callable[[], int]) -> None:
        self._boot_ns = boottime_ns
        self._ahead_ns: int | None = None

    def slept(self, now_ns: int) -> bool:
        """`now_ns` is the monotonic clock's, read a moment ago."""
        ahead_ns = self._boot_ns() - now_ns
        before, self._ahead_ns = self._ahead_ns, ahead_ns
        return before is not None and ahead_ns - before > SUSPENDED_NS
