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
from tests.support.meters import MS, Clock, HandMeter, left

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


def test_those_who_wait_for_a_reading_together_take_one_and_it_is_after_they_asked() -> None:
    looks, entered, go = [0], threading.Event(), threading.Event()
    clock = Clock()

    def read() -> Sequence[Reading]:
        looks[0] += 1
        if looks[0] == 1:
            entered.set()
            assert go.wait(30)
        return (Reading("hand", clock(), looks[0] * 1000),)

    async def run() -> None:
        metering = Metering([HandMeter(read, resolution_ns=20 * MS)], interval_s=60, monotonic_ns=clock)
        metering.start()
        try:
            await asyncio.to_thread(entered.wait, 30)
            clock.at_ns += 1000 * MS  # the reading under way began a second ago
            serves = [n.to_bytes(16, "big") for n in range(64)]
            asked = [asyncio.ensure_future(metering.begin(serve, "m")) for serve in serves]
            await asyncio.sleep(0)
            go.set()
            await asyncio.gather(*asked)
            assert looks[0] == 2
            clock.at_ns += 1000 * MS
            figures = await asyncio.gather(*(metering.end(serve) for serve in serves))
            assert looks[0] == 3
            assert {figure.peak_sharers for figure in figures} == {64}
            assert sum(figure.uj or 0 for figure in figures) == 1000
        finally:
            metering.close()

    asyncio.run(run())


def test_driver_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_module, "PATIENCE_S", 0.05)
    go = threading.Event()
    clock, looks, hangs = Clock(), [0], [False]

    def read() -> Sequence[Reading]:
        looks[0] += 1
        if hangs[0]:
            assert go.wait(30)
        return (Reading("hand", clock(), looks[0] * 1000),)

    async def run() -> None:
        metering = Metering([HandMeter(read, resolution_ns=20 * MS)], interval_s=60, monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            hangs[0] = True
            clock.at_ns += 1000 * MS
            energies = await asyncio.gather(metering.end(A), metering.begin(B, "m"))
            assert (energies[0].basis, energies[0].reason) == ("absent", "meter-late")
            assert (await metering.end(B)).reason == "meter-late"
        finally:
            go.set()
            metering.close()

    asyncio.run(run())


def test_caller_that_leaves_while_others_wait_takes_nobody_along() -> None:
    entered, go = threading.Event(), threading.Event()
    clock, looks, hold = Clock(), [0], [False]

    def read() -> Sequence[Reading]:
        looks[0] += 1
        if hold[0]:
            entered.set()
            assert go.wait(30)
        return (Reading("hand", clock(), looks[0] * 1000),)

    async def run() -> None:
        metering = Metering([HandMeter(read, resolution_ns=20 * MS)], interval_s=60, monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            await metering.begin(B, "m")
            hold[0] = True
            clock.at_ns += 1000 * MS
            leaving, staying = (asyncio.ensure_future(metering.end(serve)) for serve in (A, B))
            await asyncio.to_thread(entered.wait, 30)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            hold[0] = False
            go.set()
            b = await staying
            # the one that left shares what was counted until the thread heard of it
            assert b.uj in (500, 1000)  # microjoules of one or of two readings
            row = await left(metering)
            assert row.open_uj == b.uj
            assert row.unattributed_uj + row.idle_uj + row.open_uj == row.last_uj - row.first_uj
        finally:
            metering.close()

    asyncio.run(run())
