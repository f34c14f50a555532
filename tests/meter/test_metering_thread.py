"""The thread that reads the meters: shared readings, cancelled waiters, hanging meters, starting and closing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence

import pytest

from mesh.meter import metering as metering_module
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.meter.protocol import Reading
from mesh.schema.energy import Energy
from tests.support.meters import Clock, HandMeter, left, recorded_gpu

MS = 10**6
A, B = bytes([1]) * 16, bytes([2]) * 16


def test_callers_that_wait_together_share_one_reading() -> None:
    looks, entered, go = [0], threading.Event(), threading.Event()
    clock = Clock()

    def read() -> Sequence[Reading]:
        looks[0] += 1
        if looks[0] == 1:
            entered.set()
            assert go.wait(30)
        return (Reading("hand", clock(), looks[0]),)

    async def run() -> None:
        metering = Metering([HandMeter(read)], interval_s=60, monotonic_ns=clock)
        metering.start()
        try:
            await asyncio.to_thread(entered.wait, 30)
            serves = [n.to_bytes(16, "big") for n in range(64)]
            asked = [asyncio.ensure_future(metering.begin(serve, "m")) for serve in serves]
            await asyncio.sleep(0)  # all have asked, in the middle of a reading that began before
            go.set()
            await asyncio.gather(*asked)
            assert looks[0] == 2
        finally:
            metering.close()

    asyncio.run(run())


def test_meters_are_read_on_their_own_thread_and_closed() -> None:
    meter = HandMeter(lambda: (Reading("hand", 0, 0),))

    async def run() -> None:
        metering = Metering([meter])
        metering.start()
        await metering.begin(A, "m")
        metering.close()
        metering.close()

    asyncio.run(run())
    assert meter.threads == {"mesh-meter"}
    assert meter.closed


def test_meter_that_hangs_costs_the_figure_and_not_the_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_module, "PATIENCE_S", 0.05)
    go, stuck = threading.Event(), threading.Event()

    def read() -> Sequence[Reading]:
        stuck.set()
        assert go.wait(30)
        return (Reading("hand", 0, 0),)

    async def run() -> None:
        metering = Metering([HandMeter(read)])
        metering.start()
        try:
            await asyncio.to_thread(stuck.wait, 30)
            await metering.begin(A, "m")
            energy = await metering.end(A)
            assert (energy.basis, energy.reason) == ("absent", "meter-late")
            assert energy.span_ns is not None
        finally:
            go.set()
            metering.close()

    asyncio.run(run())


def test_caller_that_is_cancelled_leaves_no_sharer_behind() -> None:
    clock, entered, go = Clock(), threading.Event(), threading.Event()

    def read() -> Sequence[Reading]:
        entered.set()
        assert go.wait(30)
        return (Reading("hand", clock(), clock.at_ns // 1000),)

    async def run() -> Energy:
        metering = Metering([HandMeter(read)], monotonic_ns=clock)
        metering.start()
        try:
            await asyncio.to_thread(entered.wait, 30)
            asked = asyncio.ensure_future(metering.begin(A, "m"))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            go.set()
            await metering.begin(B, "m")
            clock.at_ns += 100 * MS
            return await metering.end(B)
        finally:
            go.set()
            metering.close()

    energy = asyncio.run(run())
    assert (energy.uj, energy.peak_sharers) == (100_000, None)


def test_cancelled_end_leaves_its_share_unattributed() -> None:
    clock = Clock()

    async def run() -> None:
        metering = Metering([recorded_gpu(clock, modelled=True)], monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            asked = asyncio.ensure_future(metering.end(A))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            row = await left(metering)
            assert (row.unattributed_uj, row.open_uj) == (1_000_000, 0)
        finally:
            metering.close()

    asyncio.run(run())


def test_closed_or_unstarted_metering_gives_no_figure_and_does_not_hang() -> None:
    async def run() -> None:
        metering = Metering([HandMeter(lambda: (Reading("hand", 0, 0),))])
        await metering.begin(A, "m")
        assert (await metering.end(A)).reason == "meter-stopped"
        metering.start()
        await metering.begin(A, "m")
        metering.close()
        assert (await metering.end(A)).reason == "meter-stopped"
        await metering.begin(B, "m")
        assert (await metering.end(B)).reason == "meter-stopped"

    asyncio.run(run())


def test_end_that_waits_while_metering_closes_is_answered() -> None:
    clock = Clock()

    async def run() -> Energy:
        metering = Metering([recorded_gpu(clock, modelled=False)], monotonic_ns=clock)
        metering.start()
        await metering.begin(A, "m")
        clock.at_ns += 100 * MS
        ending = asyncio.ensure_future(metering.end(A))  # waits for its guard interval on a clock that stands
        await asyncio.sleep(0)
        await asyncio.to_thread(metering.close)
        return await ending

    energy = asyncio.run(run())
    assert (energy.basis, energy.reason, energy.span_ns) == ("absent", "meter-stopped", 100 * MS)


def test_starting_and_stopping_many_times_leaves_no_thread() -> None:  # EN-09 a
    before = threading.active_count()

    async def run() -> None:
        for _ in range(200):
            metering = Metering([CpuTimeMeter("m", os.getpid, MS)])
            metering.start()
            await metering.begin(A, "m")
            metering.close()

    asyncio.run(run())
    assert threading.active_count() == before
