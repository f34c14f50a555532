"""All the meters of a gateway as one, read by one thread at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mesh.meter.clock import Sleep
from mesh.meter.protocol import Domain, EnergyMeter, Reading

SLOW_NS = 5_000_000  # what an event loop stands still for without anybody noticing
SLOW_IN_A_ROW = 10  # a few are the doing of other threads, or of a machine that is busy

_log = logging.getLogger(__name__)


class Meters:
    """`lock` is held by whoever reads. `prompt` while no meter keeps whoever reads it waiting: as they say of
    themselves, and until they are seen to."""

    def __init__(self, meters: Sequence[EnergyMeter], boottime_ns: Callable[[], int]) -> None:
        self._meters = [(meter, tuple(meter.domains())) for meter in meters]
        self._sleep = Sleep(boottime_ns)
        self._broken: set[int] = set()  # those whose failure was logged
        self._slow = 0
        self.lock = threading.Lock()
        self.prompt = all(meter.prompt for meter in meters)
        self.interval_ns = min((meter.interval_ns for meter in meters), default=0)

    @property
    def domains(self) -> list[Domain]:
        return [domain for _, domains in self._meters for domain in domains]

    def read(self, now_ns: int) -> list[Reading]:
        """One reading per domain; with `lock` held. `now_ns` is the monotonic clock's, read a moment ago."""
        readings: list[Reading] = []
        for index, (meter, domains) in enumerate(self._meters):
            try:
                readings += meter.read()
                self._broken.discard(index)
            except Exception:  # noqa: BLE001 - a driver's bug must not end the metering of everyone
                if index not in self._broken:
                    self._broken.add(index)
                    _log.exception("meter %s: read failed", type(meter).__name__)
                readings += [Reading(domain.name, now_ns, None, "meter-failed") for domain in domains]
        if self._sleep.slept(now_ns):
            # counters may have gone on or stood while the machine slept: nobody saw
            readings = [reading if reading.uj is None else reading.but(gap=True) for reading in readings]
        return readings

    def took(self, began_ns: int) -> None:
        """A reading that began then, by the process's own monotonic clock, is over: whether the next ones are prompt.
        With `lock` held."""
        self._slow = self._slow + 1 if time.monotonic_ns() - began_ns > SLOW_NS else 0
        if self._slow == SLOW_IN_A_ROW:
            self.prompt = False
            _log.warning(
                "meters: %d readings in a row took over %d ms, so from now on a thread of its own waits for them",
                SLOW_IN_A_ROW,
                SLOW_NS // 10**6,
            )

    def close(self) -> None:
        for meter, _ in self._meters:
            meter.close()
