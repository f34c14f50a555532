"""How much of a serve was observed, and that its basis says so where it was not all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mesh.meter.clock import Sleep, boottime, boottime_beside
from mesh.meter.metering import Metering
from mesh.meter.recorded import FORMAT, RecordedMeter, parse_log
from mesh.schema.energy import Energy

MS = 10**6
A = bytes([1]) * 16
HEAD: list[dict[str, Any]] = [
    {"v": FORMAT},
    {"domain": "gpu0", "method": "log", "resolution_ns": 0, "modelled": False},
]


class Clock:
    """A machine's clocks: `slept_ns` passed on the boot clock alone."""

    def __init__(self) -> None:
        self.at_ns = 10**9
        self.slept_ns = 0

    def __call__(self) -> int:
        return self.at_ns

    def boot(self) -> int:
        return self.at_ns + self.slept_ns


def rows(**reasons: str) -> list[dict[str, Any]]:
    """100 mJ in every 10 ms for a second; a reason in the place of the n-th reading."""
    read = [{"uj": n * 100_000} if f"n{n}" not in reasons else {"reason": reasons[f"n{n}"]} for n in range(100)]
    return [{"at_ns": n * 10 * MS, "domain": "gpu0", **fields} for n, fields in enumerate(read)]


async def served(clock: Clock, log: list[dict[str, Any]], *, slept_ns: int) -> Energy:
    """A serve of 100 ms, looked at in its middle."""
    meter = RecordedMeter(parse_log("\n".join(map(json.dumps, HEAD + log)).encode()), monotonic_ns=clock)
    metering = Metering([meter], interval_s=60, monotonic_ns=clock, boottime_ns=clock.boot)
    metering.start()
    try:
        await metering.begin(A, "m")
        clock.at_ns += 50 * MS
        clock.slept_ns += slept_ns
        await metering.begin(bytes(16), "m")  # whose begin is a look, and which is nobody's company for long
        await metering.end(bytes(16), keep=False)
        clock.at_ns += 50 * MS
        return await metering.end(A)
    finally:
        metering.close()


def test_serve_that_was_observed_throughout_says_nothing_of_it() -> None:
    energy = asyncio.run(served(Clock(), rows(), slept_ns=0))
    assert (energy.covered_ns, energy.span_ns, energy.uj) == (None, 100 * MS, 1_000_000)


def test_suspension_is_not_covered_and_nothing_is_called_measured() -> None:  # EN-09 e
    energy = asyncio.run(served(Clock(), rows(), slept_ns=600 * 10**9))
    assert (energy.basis, energy.covered_ns, energy.span_ns) == ("allocated", 50 * MS, 100 * MS)
    assert energy.uj == 1_000_000


def test_device_that_was_lost_for_a_while_is_not_covered() -> None:
    energy = asyncio.run(served(Clock(), rows(n5="nvml-gpu-is-lost"), slept_ns=0))
    assert (energy.basis, energy.covered_ns, energy.span_ns) == ("allocated", 0, 100 * MS)


def test_device_that_is_lost_at_the_end_has_no_figure() -> None:
    energy = asyncio.run(served(Clock(), rows(n10="nvml-gpu-is-lost"), slept_ns=0))
    assert (energy.basis, energy.reason, energy.uj) == ("absent", "nvml-gpu-is-lost", None)


@pytest.mark.parametrize(("ahead_ns", "slept"), [(0, False), (50 * MS, False), (101 * MS, True), (-MS, False)])
def test_sleep_is_the_boot_clock_running_ahead(ahead_ns: int, slept: bool) -> None:
    clock = Clock()
    sleep = Sleep(clock.boot)
    assert not sleep.slept(clock.at_ns)
    clock.at_ns += 10**9
    clock.slept_ns += ahead_ns
    assert sleep.slept(clock.at_ns) is slept
    assert not sleep.slept(clock.at_ns)


def test_boot_clock_goes_with_the_real_clock_only() -> None:
    clock = Clock()
    assert boottime_beside(clock) is clock
    assert boottime() <= boottime()
