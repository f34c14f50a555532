"""A meter whose figures are known."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mesh.meter.metering import Metering
from mesh.meter.protocol import Domain, Reading
from mesh.meter.recorded import FORMAT, RecordedMeter, parse_log
from mesh.schema.checkpoint import DomainTotals

MS = 10**6


class SteadyMeter:
    """A lamp: it draws the same all the time, `uj_per_us` microjoules in a microsecond, for the backend `recipe_id`."""

    interval_ns = 20_000_000
    prompt = False

    def __init__(self, recipe_id: str, uj_per_us: int) -> None:
        self._domain = Domain(f"lamp:{recipe_id}", "lamp", 1, frozenset({recipe_id}), modelled=True)
        self._uj_per_us = uj_per_us
        self._began_ns = time.monotonic_ns()

    def domains(self) -> Sequence[Domain]:
        return [self._domain]

    def read(self) -> Sequence[Reading]:
        now_ns = time.monotonic_ns()
        return [Reading(self._domain.name, now_ns, (now_ns - self._began_ns) // 1000 * self._uj_per_us)]

    def close(self) -> None:
        """Nothing is held."""


async def left(metering: Metering) -> DomainTotals:
    """The books of the one domain once what somebody held who left is nobody's: the thread sees to it, soon after."""
    async with asyncio.timeout(60):
        while not (row := metering.totals().domains[0]).unattributed_uj:
            await asyncio.sleep(0.001)
    return row


class Clock:
    def __init__(self) -> None:
        self.at_ns = 10**9

    def __call__(self) -> int:
        return self.at_ns


class HandMeter:
    """A meter that does what a test says, for what no real one does on demand."""

    interval_ns = 50 * MS

    def __init__(
        self,
        read: Callable[[], Sequence[Reading]],
        *,
        resolution_ns: int = MS,
        prompt: bool = False,
        modelled: bool = True,
    ) -> None:
        self._read = read
        self.prompt = prompt
        self._domain = Domain("hand", "by-hand", resolution_ns, None, modelled=modelled)
        self.closed = False
        self.threads: set[str] = set()

    def domains(self) -> Sequence[Domain]:
        return (self._domain,)

    def read(self) -> Sequence[Reading]:
        self.threads.add(threading.current_thread().name)
        return self._read()

    def close(self) -> None:
        self.closed = True


def recorded_gpu(clock: Clock, *, modelled: bool, resolution_ns: int = MS) -> RecordedMeter:
    """100 mJ in every 10 ms, for 10 seconds."""
    head: list[dict[str, Any]] = [
        {"v": FORMAT},
        {"domain": "gpu0", "method": "log", "resolution_ns": resolution_ns, "modelled": modelled, "engines": ["m"]},
    ]
    rows = [{"at_ns": n * 10 * MS, "domain": "gpu0", "uj": n * 100_000} for n in range(1000)]
    return RecordedMeter(parse_log("\n".join(map(json.dumps, head + rows)).encode()), monotonic_ns=clock)
