"""Readings that are taken where they are needed: of meters that keep nobody waiting, without the meter thread."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.meter import metering as metering_module
from mesh.meter import meters as meters_module
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.meter.meters import SLOW_IN_A_ROW
from mesh.meter.nvml import NvmlMeter
from mesh.meter.protocol import EnergyMeter, Reading
from mesh.meter.rapl import RaplMeter
from mesh.meter.recorded import RecordedMeter
from mesh.schema.checkpoint import DomainTotals
from mesh.schema.energy import Energy
from tests.meter.powercap_tree import two_sockets
from tests.support.meters import MS, Clock, HandMeter, recorded_gpu

A, B, C = (bytes([n]) * 16 for n in (1, 2, 3))
RESOLUTION_NS = 20 * MS


class Prompt:
    """A counter that is a thousand microjoules on at each look, by a clock that stands. A look at which `held` is
    cleared waits until it is set; one at which `fault` is there says that."""

    def __init__(self, *, modelled: bool = True) -> None:
        self.looks: list[str] = []  # by the thread that took it
        self.fault: str | None = None
        self.clock, self.held, self.entered = Clock(), threading.Event(), threading.Event()
        self.held.set()
        self.meter = HandMeter(self, resolution_ns=RESOLUTION_NS, prompt=True, modelled=modelled)

    def __call__(self) -> Sequence[Reading]:
        self.looks.append(threading.current_thread().name)
        self.entered.set()
        assert self.held.wait(30)
        if self.fault is not None:
            return (Reading("hand", self.clock(), None, self.fault),)
        return (Reading("hand", self.clock(), len(self.looks) * 1000),)

    @contextmanager
    def metering(self, *others: EnergyMeter) -> Iterator[Metering]:
        """Once the thread has taken the first reading."""
        metering = Metering([self.meter, *others], interval_s=600, monotonic_ns=self.clock)
        metering.start()
        try:
            assert self.entered.wait(30)
            with metering._meters.lock:
                assert self.looks == ["mesh-meter"]
            yield metering
        finally:
            self.held.set()
            metering.close()


def test_whoever_needs_a_reading_takes_it() -> None:
    counter = Prompt()
    with counter.metering() as metering:
        counter.clock.at_ns += 1000 * MS
        assert metering.begin_nowait(A, "m")
        assert metering.begin_nowait(B, "m")  # by the same one
        assert counter.looks == ["mesh-meter", "MainThread"]
        counter.clock.at_ns += 1000 * MS
        figures = [metering.end_nowait(serve) for serve in (A, B)]
        assert counter.looks == ["mesh-meter", "MainThread", "MainThread"]
        assert [figure and (figure.uj, figure.basis, figure.span_ns) for figure in figures] == [
            (500, "modelled", 1000 * MS)
        ] * 2
        (row,) = metering.totals().domains
        assert (row.open_uj, row.idle_uj) == (1000, 1000)


def test_who_waits_needs_no_thread_either() -> None:
    counter = Prompt()

    async def run() -> None:
        with counter.metering() as metering:
            counter.clock.at_ns += 1000 * MS
            await metering.begin(A, "m")
            counter.clock.at_ns += 1000 * MS
            assert (await metering.end(A)).uj == 1000
            assert counter.looks == ["mesh-meter", "MainThread", "MainThread"]

    asyncio.run(run())


def test_reading_that_the_thread_is_taking_is_waited_for_and_not_with_the_loop() -> None:
    counter = Prompt()

    async def run() -> None:
        with counter.metering() as metering:
            counter.held.clear()
            counter.entered.clear()
            counter.clock.at_ns += 1000 * MS
            with metering._wake:
                metering._asks.append(metering_module.Ask("look", b"", 0))
                metering._ring()
            assert await asyncio.to_thread(counter.entered.wait, 30)  # the thread is in the middle of it
            assert not metering.begin_nowait(A, "m")
            beginning = asyncio.ensure_future(metering.begin(A, "m"))
            await asyncio.sleep(0)
            counter.held.set()
            await beginning
            counter.clock.at_ns += 1000 * MS
            figure = metering.end_nowait(A)
            assert figure is not None
            assert figure.uj == 1000

    asyncio.run(run())


def test_meter_beside_one_that_may_keep_the_loop_waiting_is_read_by_the_thread() -> None:
    counter = Prompt()

    async def run() -> None:
        with counter.metering(recorded_gpu(counter.clock, modelled=False)) as metering:
            counter.clock.at_ns += 1000 * MS
            assert not metering.begin_nowait(A, "m")
            await metering.begin(A, "m")
            counter.clock.at_ns += 1000 * MS
            assert metering.end_nowait(A) is None
            await metering.end(A)
            assert set(counter.looks) == {"mesh-meter"}

    asyncio.run(run())


def test_meter_that_turns_out_to_be_slow_is_the_threads_from_then_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Prompt()

    async def run() -> None:
        with counter.metering() as metering:
            monkeypatch.setattr(meters_module, "SLOW_NS", 10**15)
            for _ in range(SLOW_IN_A_ROW):
                counter.clock.at_ns += 1000 * MS
                assert metering.begin_nowait(A, "m")
                metering.discard(A)
            monkeypatch.setattr(meters_module, "SLOW_NS", -1)
            for left in reversed(range(SLOW_IN_A_ROW)):
                counter.clock.at_ns += 1000 * MS
                assert metering.begin_nowait(A, "m")
                metering.discard(A)
                assert ("from now on a thread of its own" in caplog.text) == (left == 0)
            counter.clock.at_ns += 1000 * MS
            assert not metering.begin_nowait(A, "m")
            await metering.begin(A, "m")
            counter.clock.at_ns += 1000 * MS
            assert (await metering.end(A)).uj == 1000
            assert counter.looks[-2:] == ["mesh-meter"] * 2

    asyncio.run(run())


def test_serve_alone_waits_for_its_guard_interval_all_the_same() -> None:
    counter = Prompt(modelled=False)

    async def run() -> None:
        with counter.metering() as metering:
            counter.clock.at_ns += 1000 * MS
            assert metering.begin_nowait(A, "m")
            counter.clock.at_ns += 1000 * MS
            looks = len(counter.looks)
            assert metering.end_nowait(A) is None
            assert len(counter.looks) == looks  # one taken now would not help it
            ending = asyncio.ensure_future(metering.end(A))
            while not metering._guards.waiting:
                await asyncio.sleep(0)
            counter.clock.at_ns += RESOLUTION_NS
            with metering._wake:
                metering._ring()
            figure = await ending
            assert (figure.basis, figure.uj, figure.span_ns) == ("measured", 2000, 1000 * MS)

    asyncio.run(run())


def test_counter_that_cannot_be_read_is_told_by_its_reason() -> None:
    counter = Prompt()

    async def run() -> None:
        with counter.metering() as metering:
            counter.clock.at_ns += 1000 * MS
            assert metering.begin_nowait(A, "m")
            counter.clock.at_ns += 1000 * MS
            counter.fault = "zone-gone"
            assert metering.end_nowait(A) is None
            figure = await metering.end(A)
            assert (figure.basis, figure.reason) == ("absent", "zone-gone")
            assert not metering.begin_nowait(B, "m")
            counter.clock.at_ns += 1000 * MS
            await metering.begin(B, "m")
            counter.fault = None
            counter.clock.at_ns += 1000 * MS
            assert (await metering.end(B)).reason == "zone-gone"

    asyncio.run(run())


def test_nothing_is_read_before_the_start_or_after_the_close() -> None:
    counter = Prompt()
    metering = Metering([counter.meter], interval_s=600, monotonic_ns=counter.clock)
    assert not metering.begin_nowait(A, "m")
    metering.start()
    metering.close()
    looks = len(counter.looks)
    assert not metering.begin_nowait(B, "m")
    assert metering.end_nowait(B) is None
    assert len(counter.looks) == looks


def test_serve_that_never_began_has_nothing_to_end() -> None:
    counter = Prompt()
    with counter.metering() as metering:
        counter.clock.at_ns += 1000 * MS
        assert metering.end_nowait(C) is None
        assert counter.looks == ["mesh-meter"]


def test_only_counters_that_the_kernel_keeps_are_prompt() -> None:
    assert RaplMeter.prompt
    assert not any(meter.prompt for meter in (NvmlMeter, CpuTimeMeter, RecordedMeter))


def test_books_add_up_at_every_look_while_serves_come_and_go_over_a_real_tree(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    metering = Metering([RaplMeter(tmp_path, observe_ns=2 * MS)])  # they stand yet, so that this is their resolution
    metering.start()
    receipts: dict[str, int] = defaultdict(int)
    sealing, over = threading.Lock(), threading.Event()
    wrong: list[DomainTotals] = []

    def turn() -> None:
        files = [os.open(path, os.O_WRONLY) for path in sorted(tmp_path.rglob("energy_uj"))]
        for uj in itertools.count(10**8, 15_013):
            for file in files:
                os.pwrite(file, b"%012d\n" % uj, 0)
            if over.wait(0.001):
                break
        for file in files:
            os.close(file)

    def look() -> None:
        while not over.is_set():
            with sealing:
                wrong.extend(row for row in metering.totals().domains if not adds_up(row))

    def adds_up(row: DomainTotals) -> bool:
        told = row.idle_uj + row.unattributed_uj + row.open_uj + receipts[row.domain]
        return row.last_uj - row.first_uj == told

    async def serve(number: int) -> None:
        serve_id = number.to_bytes(16, "big")
        if not metering.begin_nowait(serve_id, "m"):
            await metering.begin(serve_id, "m")
        await asyncio.sleep(number % 4 * 3 / 1000)
        if number % 11 == 0:
            metering.discard(serve_id)
            return
        energy = metering.end_nowait(serve_id, keep=number % 13 > 0) or await metering.end(serve_id)
        await asyncio.to_thread(seal, serve_id, energy)

    def seal(serve_id: bytes, energy: Energy) -> None:
        with sealing:
            for source in energy.sources:
                receipts[source.domain] += source.uj
            metering.sealed(serve_id)

    async def run() -> None:
        for first in range(0, 1000, 50):
            await asyncio.gather(*(serve(number) for number in range(first, first + 50)))

    threads = [threading.Thread(target=work) for work in (turn, look)]
    for thread in threads:
        thread.start()
    try:
        asyncio.run(run())
    finally:
        over.set()
        for thread in threads:
            thread.join()
        metering.close()
    assert not wrong
    assert all(map(adds_up, metering.totals().domains))
    assert min(receipts.values()) > 0
