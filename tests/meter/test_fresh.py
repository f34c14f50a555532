"""The meter thread and readings that are fresh enough: who asks soon after one waits for nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from mesh.meter import metering as metering_module
from mesh.meter.looking import Look
from mesh.meter.metering import Metering
from mesh.meter.protocol import Reading
from tests.support.meters import MS, Clock, HandMeter, left

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))


class Looked:
    """A counter that is a thousand microjoules on at each look, by a clock that stands. While `hold` is true, whoever
    looks has `entered` and waits for `go`."""

    def __init__(self) -> None:
        self.looks, self.hold, self.clock = 0, False, Clock()
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self) -> Sequence[Reading]:
        self.looks += 1
        if self.hold:
            self.entered.set()
            assert self.go.wait(30)
        return (Reading("hand", self.clock(), self.looks * 1000),)

    @contextmanager
    def metering(self, **clocks: Clock) -> Iterator[Metering]:
        meter = HandMeter(self, resolution_ns=20 * MS)
        metering = Metering([meter], interval_s=60, monotonic_ns=self.clock, **clocks)
        metering.start()
        try:
            yield metering
        finally:
            self.go.set()
            metering.close()


def test_fresh_reading_is_not_taken_again_and_a_stale_one_is() -> None:
    counter = Looked()

    async def run() -> None:
        with counter.metering() as metering:
            await metering.begin(A, "m")
            taken = counter.looks
            counter.clock.at_ns += 5 * MS  # a quarter of the resolution
            await metering.begin(B, "m")
            energy = await metering.end(B)
            assert (energy.basis, counter.looks) == ("unresolved", taken)
            counter.clock.at_ns += 1
            await metering.begin(C, "m")
            assert counter.looks == taken + 1
            for serve in (A, C):
                await metering.end(serve, keep=False)
            (row,) = metering.totals().domains
            assert row.last_uj - row.first_uj == row.idle_uj + row.unattributed_uj

    asyncio.run(run())


def test_reading_from_before_the_machine_slept_is_stale() -> None:
    counter, boot = Looked(), Clock()

    async def run() -> None:
        with counter.metering(boottime_ns=boot) as metering:
            await metering.begin(A, "m")
            taken = counter.looks
            boot.at_ns += 600 * 10**9  # asleep: the monotonic clock stands
            await metering.begin(B, "m")
            assert counter.looks == taken + 1

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
    counter = Looked()
    counter.hold = True

    async def run() -> None:
        with counter.metering() as metering:
            await asyncio.to_thread(counter.entered.wait, 30)
            counter.clock.at_ns += 1000 * MS  # the reading under way began a second ago
            serves = [n.to_bytes(16, "big") for n in range(64)]
            asked = [asyncio.ensure_future(metering.begin(serve, "m")) for serve in serves]
            await asyncio.sleep(0)
            counter.go.set()
            await asyncio.gather(*asked)
            assert counter.looks == 2
            counter.clock.at_ns += 1000 * MS
            figures = await asyncio.gather(*(metering.end(serve) for serve in serves))
            assert counter.looks == 3
            assert {figure.peak_sharers for figure in figures} == {64}
            assert sum(figure.uj or 0 for figure in figures) == 1000

    asyncio.run(run())


def test_driver_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_module, "PATIENCE_S", 0.05)
    counter = Looked()

    async def run() -> None:
        with counter.metering() as metering:
            await metering.begin(A, "m")
            counter.hold = True
            counter.clock.at_ns += 1000 * MS
            energies = await asyncio.gather(metering.end(A), metering.begin(B, "m"))
            assert (energies[0].basis, energies[0].reason) == ("absent", "meter-late")
            assert (await metering.end(B)).reason == "meter-late"

    asyncio.run(run())


def test_serves_that_ended_while_a_driver_hung_share_nothing_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Looked()

    async def run() -> None:
        with counter.metering() as metering:
            await metering.begin(A, "m")
            await metering.begin(B, "m")
            monkeypatch.setattr(metering_module, "PATIENCE_S", 0.05)
            counter.hold = True
            counter.clock.at_ns += 1000 * MS
            for serve in (A, B):  # the second one where it is known already that nobody answers
                assert (await metering.end(serve)).reason == "meter-late"
            counter.hold = False
            counter.go.set()
            assert (await left(metering)).open_uj == 0

    asyncio.run(run())


def test_caller_that_leaves_while_others_wait_takes_nobody_along() -> None:
    counter = Looked()

    async def run() -> None:
        with counter.metering() as metering:
            await metering.begin(A, "m")
            await metering.begin(B, "m")
            counter.hold = True
            counter.clock.at_ns += 1000 * MS
            leaving, staying = (asyncio.ensure_future(metering.end(serve)) for serve in (A, B))
            await asyncio.to_thread(counter.entered.wait, 30)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            counter.hold = False
            counter.go.set()
            b = await staying
            # the one that left shares what was counted until the thread heard of it
            assert b.uj in (500, 1000)  # microjoules of one or of two readings
            row = await left(metering)
            assert row.open_uj == b.uj
            assert row.unattributed_uj + row.idle_uj + row.open_uj == row.last_uj - row.first_uj

    asyncio.run(run())


def test_look_that_was_answered_as_it_was_asked_is_waited_for_no_more() -> None:
    async def run() -> None:
        look = Look(asyncio.get_running_loop(), 60)
        look.set_result(None)
        async with asyncio.timeout(30):
            assert await look.wait()

    asyncio.run(run())
