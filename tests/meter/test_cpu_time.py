"""The CPU-time meter on real processes."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

from mesh.errors import MeterError
from mesh.meter.cpu_time import CpuTimeMeter, watts

ONE_WATT = 1_000_000
TICK_UJ = 10**6 // os.sysconf("SC_CLK_TCK")  # of one busy core at one watt


def count(meter: CpuTimeMeter) -> int:
    (reading,) = meter.read()
    assert reading.uj is not None, reading.reason
    return reading.uj


def test_counter_follows_the_cpu_time_of_the_process(worker: Any) -> None:
    meter = CpuTimeMeter("m", lambda: worker.pid, ONE_WATT)
    first = count(meter)
    worker.do("burn", 0.3)
    spent = count(meter) - first
    times = psutil.Process(worker.pid).cpu_times()
    assert 300_000 - 2 * TICK_UJ <= spent <= (times.user + times.system) * 10**6 + TICK_UJ


def test_counter_is_cpu_time_times_watts(worker: Any) -> None:
    one, fifteen = (CpuTimeMeter("m", lambda: worker.pid, factor * ONE_WATT) for factor in (1, 15))
    worker.do("burn", 0.1)
    assert count(fifteen) == 15 * count(one)


def test_counter_includes_children_and_keeps_the_time_of_those_that_end(worker: Any) -> None:
    meter = CpuTimeMeter("m", lambda: worker.pid, ONE_WATT)
    before = count(meter)
    worker.do("child", 0.2)
    with_child = count(meter)
    assert with_child - before >= 200_000 - 2 * TICK_UJ
    worker.do("release")
    (reading,) = meter.read()
    assert reading.uj is not None
    assert with_child <= reading.uj <= with_child + 200_000  # kept, and not counted again from its parent
    assert not reading.gap
    worker.do("burn", 0.1)
    assert count(meter) - reading.uj >= 100_000 - 2 * TICK_UJ


def test_counter_keeps_the_time_of_a_child_that_nobody_waits_for(worker: Any) -> None:
    meter = CpuTimeMeter("m", lambda: worker.pid, ONE_WATT)
    worker.do("disown")
    worker.do("child", 0.2)
    with_child = count(meter)
    worker.do("release")
    (reading,) = meter.read()
    assert reading.uj is not None
    assert reading.uj >= with_child
    assert reading.gap  # its last moments went unseen
    worker.do("burn", 0.1)
    (after,) = meter.read()
    assert after.uj is not None
    assert after.uj - reading.uj >= 100_000 - 2 * TICK_UJ  # at once, not after making up for the lost child
    assert not after.gap


def test_engine_that_is_gone_has_no_reading_and_its_successor_continues_the_counter(
    worker: Any, another_worker: Any
) -> None:
    pids: list[int | None] = [worker.pid]
    meter = CpuTimeMeter("m", lambda: pids[-1], ONE_WATT)
    worker.do("burn", 0.1)
    last = count(meter)
    worker.end()
    (gone,) = meter.read()
    assert (gone.uj, gone.reason) == (None, "no-process")
    pids.append(None)
    assert meter.read()[0].reason == "no-process"
    another_worker.do("burn", 0.1)
    pids.append(another_worker.pid)
    (back,) = meter.read()
    assert back.uj is not None
    assert back.uj >= last + 100_000 - 2 * TICK_UJ
    assert back.gap
    assert not back.reset
    assert not meter.read()[0].gap


def test_engine_restarted_between_two_readings_is_a_gap(worker: Any, another_worker: Any) -> None:
    pids = [worker.pid]
    meter = CpuTimeMeter("m", lambda: pids[-1], ONE_WATT)
    worker.do("burn", 0.1)
    last = count(meter)
    pids.append(another_worker.pid)
    (reading,) = meter.read()
    assert reading.uj is not None
    assert reading.uj >= last
    assert reading.gap


def test_first_reading_is_no_gap(worker: Any) -> None:
    (reading,) = CpuTimeMeter("m", lambda: worker.pid, ONE_WATT).read()
    assert not reading.gap


def test_domain_is_modelled_and_names_the_watts() -> None:
    (domain,) = CpuTimeMeter("smollm2", os.getpid, 12_500_000).domains()
    assert domain.name == "cpu-time:smollm2"
    assert domain.method == "cpu-time@12.5W"
    assert domain.modelled
    assert domain.resolution_ns == 10**9 // os.sysconf("SC_CLK_TCK")
    assert domain.covers("smollm2")
    assert not domain.covers("another")


@pytest.mark.parametrize(
    ("watts_u", "text"), [(15_000_000, "15"), (1, "0.000001"), (12_500_000, "12.5"), (100_000_000, "100"), (0, "0")]
)
def test_watts_are_spelled_as_the_shortest_decimal(watts_u: int, text: str) -> None:
    assert watts(watts_u) == text


@pytest.mark.parametrize("watts_u", [0, -15_000_000])
def test_watts_that_estimate_nothing_are_refused(watts_u: int) -> None:
    with pytest.raises(MeterError, match="watts must be above 0"):
        CpuTimeMeter("m", os.getpid, watts_u)
