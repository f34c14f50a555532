"""The meter thread and what serves see of it. The clock is the test's own; the thread is real."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from mesh.errors import MeterError
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.meter.protocol import Reading
from mesh.schema.energy import Energy
from tests.support.meters import Clock, HandMeter, recorded_gpu

MS = 10**6
A, B = bytes([1]) * 16, bytes([2]) * 16


def test_two_serves_share_a_recorded_counter() -> None:
    clock = Clock()

    async def run() -> tuple[Energy, Energy]:
        metering = Metering([recorded_gpu(clock, modelled=True)], monotonic_ns=clock, random=lambda n: b"e" * n)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            await metering.begin(B, "m")
            clock.at_ns += 100 * MS
            b = await metering.end(B)
            clock.at_ns += 100 * MS
            a = await metering.end(A)
            (row,) = metering.totals().domains
            assert (row.first_uj, row.last_uj, row.open_uj) == (0, 3_000_000, 3_000_000)
            metering.sealed(A)
            metering.sealed(B)
            (row,) = metering.totals().domains
            assert (row.idle_uj, row.unattributed_uj, row.open_uj) == (0, 0, 0)
            assert metering.totals().epoch == b"e" * 16
            assert metering.ended() == []
        finally:
            metering.close()
        return a, b

    a, b = asyncio.run(run())
    assert (a.basis, a.uj, a.window_uj, a.peak_sharers, a.span_ns) == ("modelled", 2_500_000, 3_000_000, 2, 300 * MS)
    assert (b.basis, b.uj, b.window_uj, b.peak_sharers, b.span_ns) == ("modelled", 500_000, 1_000_000, 2, 100 * MS)
    assert a.epoch == b.epoch == b"e" * 16


def test_serve_alone_waits_for_its_guard_interval_and_is_measured() -> None:
    clock = Clock()

    async def run() -> Energy:
        metering = Metering(
            [recorded_gpu(clock, modelled=False, resolution_ns=20 * MS)], interval_s=0.001, monotonic_ns=clock
        )
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            ending = asyncio.ensure_future(metering.end(A))
            done, _ = await asyncio.wait({ending}, timeout=0.1)
            assert not done
            clock.at_ns += 20 * MS
            return await ending
        finally:
            metering.close()

    energy = asyncio.run(run())
    assert (energy.basis, energy.uj, energy.span_ns, energy.rule) == ("measured", 1_200_000, 100 * MS, None)


def test_serve_whose_guard_interval_is_broken_does_not_wait_for_it() -> None:
    clock = Clock()

    async def run() -> tuple[Energy, Energy]:
        metering = Metering([recorded_gpu(clock, modelled=False, resolution_ns=20 * MS)], monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            ending = asyncio.ensure_future(metering.end(A))
            await asyncio.sleep(0)
            await metering.begin(B, "m")
            a = await ending
            clock.at_ns += 100 * MS
            return a, await metering.end(B)
        finally:
            metering.close()

    a, b = asyncio.run(run())
    assert (a.basis, a.uj, a.peak_sharers) == ("allocated", 1_000_000, 1)
    assert (b.basis, b.uj, b.peak_sharers) == ("allocated", 1_000_000, 1)


def test_abandoned_serve_is_absent_and_its_share_unattributed() -> None:
    clock = Clock()

    async def run() -> None:
        metering = Metering([recorded_gpu(clock, modelled=False)], monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            energy = await metering.end(A, keep=False)
            assert (energy.basis, energy.reason, energy.span_ns) == ("absent", "abandoned", 100 * MS)
            (row,) = metering.totals().domains
            assert (row.unattributed_uj, row.open_uj) == (1_000_000, 0)
        finally:
            metering.close()

    asyncio.run(run())


def test_figure_that_no_receipt_took_is_unattributed() -> None:
    clock = Clock()

    async def run() -> None:
        metering = Metering([recorded_gpu(clock, modelled=True)], monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            assert (await metering.end(A)).uj == 1_000_000
            metering.discard(A)
            (row,) = metering.totals().domains
            assert (row.unattributed_uj, row.open_uj) == (1_000_000, 0)
        finally:
            metering.close()

    asyncio.run(run())


@pytest.mark.parametrize("meters", [0, 1])
def test_engine_that_no_meter_covers_is_absent(meters: int) -> None:
    clock = Clock()

    async def run() -> Energy:
        metering = Metering([recorded_gpu(clock, modelled=True)] * meters, monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "another")
            clock.at_ns += 5
            return await metering.end(A)
        finally:
            metering.close()

    energy = asyncio.run(run())
    assert (energy.basis, energy.reason, energy.span_ns, energy.uj) == ("absent", "no-meter", 5, None)


def test_metering_without_meters_needs_no_thread_and_has_empty_totals() -> None:
    before = threading.active_count()
    metering = Metering([])
    metering.start()
    assert threading.active_count() == before
    assert metering.totals().domains == []
    assert len(metering.totals().epoch) == 16
    metering.close()


def test_serve_that_never_began_is_absent() -> None:
    energy = asyncio.run(Metering([]).end(A))
    assert (energy.basis, energy.reason, energy.span_ns) == ("absent", "not-begun", None)


def test_meter_that_raises_is_a_reason_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    clock, fault = Clock(), [RuntimeError("driver bug")]

    def read() -> Sequence[Reading]:
        if fault:
            raise fault[0]
        return (Reading("hand", clock(), clock.at_ns // 1000),)

    async def run() -> tuple[Energy, Energy]:
        metering = Metering([HandMeter(read)], interval_s=0.001, monotonic_ns=clock)
        metering.start()
        try:
            await metering.begin(A, "m")
            clock.at_ns += 100 * MS
            a = await metering.end(A)
            fault.clear()
            await metering.begin(B, "m")
            clock.at_ns += 100 * MS
            return a, await metering.end(B)
        finally:
            metering.close()

    a, b = asyncio.run(run())
    assert (a.basis, a.reason) == ("absent", "meter-failed")
    assert (b.basis, b.uj) == ("modelled", 100_000)
    assert [record.getMessage() for record in caplog.records] == ["meter HandMeter: read failed"]


def test_domains_of_two_meters_with_one_name_are_refused() -> None:
    meters = [CpuTimeMeter("m", os.getpid, MS), CpuTimeMeter("m", os.getpid, MS)]
    with pytest.raises(MeterError, match="cpu-time:m"):
        Metering(meters)


def test_serves_on_a_real_process_add_up_to_its_cpu_time(worker: Any) -> None:
    """On a real process and the real clock: every tick of its CPU time is in a receipt, idle, or unattributed."""

    async def serve(metering: Metering, n: int) -> Energy:
        serve_id = n.to_bytes(16, "big")
        await metering.begin(serve_id, "m")
        async with lock:
            await asyncio.to_thread(worker.do, "burn", 0.02)
        energy = await metering.end(serve_id)
        metering.sealed(serve_id)
        return energy

    async def run() -> tuple[list[Energy], Any]:
        metering = Metering([CpuTimeMeter("m", lambda: worker.pid, 10**6)], interval_s=0.01)
        metering.start()
        try:
            figures = await asyncio.gather(*(serve(metering, n) for n in range(12)))
            return figures, metering.totals().domains[0]
        finally:
            metering.close()

    lock = asyncio.Lock()
    figures, row = asyncio.run(run())
    shares = sum(energy.uj or 0 for energy in figures)
    assert row.last_uj - row.first_uj == shares + row.idle_uj + row.unattributed_uj
    assert row.open_uj == 0
    assert shares >= 12 * 20_000 - 20_000
    assert {energy.basis for energy in figures} <= {"modelled", "unresolved"}
    assert max(energy.peak_sharers or 1 for energy in figures) == 12
    times = psutil.Process(worker.pid).cpu_times()
    tick_uj = 10**6 // os.sysconf("SC_CLK_TCK")
    assert row.last_uj <= (times.user + times.system) * 10**6 + 1
    assert row.last_uj >= (times.user + times.system) * 10**6 - tick_uj
