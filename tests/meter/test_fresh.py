"""The meter thread and readings that are fresh enough: who asks soon after one waits for nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from mesh.meter import metering as metering_module
from mesh.meter.metering import Metering
from mesh.meter.protocol import Reading
from tests.support.meters import MS, Clock, HandMeter

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


def test_fresh_reading_is_not_taken_again_and_a_stale_one_is() -> None:
    looks, clock = [0], Clock()

    def read() -> Sequence[Reading]:
        looks[0] += 1
        return (Reading("hand", clock(), looks[0] * 1000),)

    async def run() -> None:
        metering = Metering([HandMeter(read, resolution_ns=20 * MS)], interval_s=60, monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            taken = looks[0]
            clock.at_ns += 5 * MS  # a quarter of the resolution
            await metering.begin(B, "m")
            energy = await metering.end(B)
            assert (energy.basis, looks[0]) == ("unresolved", taken)
            clock.at_ns += 1
            await metering.begin(C, "m")
            assert looks[0] == taken + 1
            for serve in (A, C):
                await metering.end(serve, keep=False)
            (row,) = metering.totals().domains
            assert row.last_uj - row.first_uj == row.idle_uj + row.unattributed_uj
        finally:
            metering.close()

    asyncio.run(run())


def test_reading_from_before_the_machine_slept_is_stale() -> None:
    looks, clock, boot = [0], Clock(), Clock()

    def read() -> Sequence[Reading]:
        looks[0] += 1
        return (Reading("hand", clock(), looks[0] * 1000),)

    async def run() -> None:
        meter = HandMeter(read, resolution_ns=20 * MS)
        metering = Metering([meter], interval_s=60, monotonic_ns=clock, boottime_ns=boot)
        metering.start()
        try:
            await metering.begin(A, "m")
            taken = looks[0]
            boot.at_ns += 600 * 10**9  # asleep: the monotonic clock stands
            await metering.begin(B, "m")
            assert looks[0] == taken + 1
        finally:
            metering.close()

    asyncio.run(run())


def test_first_serve_of_a_fresh_reading_wakes_the_thread_to_look_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_module, "IDLE_INTERVAL_S", 10.0**6)
    looked = threading.Semaphore(0)

    def read() -> Sequence[Reading]:
        looked.release()
        return (Reading("hand", time.monotonic_ns(), 0),)

    async def run() -> None:
        metering = Metering([HandMeter(read, resolution_ns=10**15)], interval_s=0.001)
        metering.start()
        try:
            assert await asyncio.to_thread(looked.acquire, timeout=30)
            await metering.begin(A, "m")  # by that reading, or by one of its own
            for _ in range(5):  # an idle thread would not look again
                assert await asyncio.to_thread(looked.acquire, timeout=30)
        finally:
            metering.close()

    asyncio.run(run())
