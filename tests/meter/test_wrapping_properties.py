"""Conservation over a processor's counter that wraps, sleeps and begins anew: what was spent while it could be counted
is somewhere, once, and nothing else is. EN-01, EN-10 b."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.meter.allocation import Allocation
from mesh.meter.rapl import MAX_WATTS, RaplMeter
from tests.meter.powercap_tree import zone
from tests.support.examples import examples

S = 10**9
RANGE_UJ = 65_532_610_987  # the smallest in the field: at most watts it is over in half a minute

STEPS = st.one_of(
    # How long, and thousandths of the most: a round of the counter is over in a few of the first kind.
    st.tuples(st.just("spend"), st.integers(5 * S, 20 * S), st.integers(500, 1000)),
    st.tuples(st.just("spend"), st.integers(1000, S), st.integers(1, 1000)),
    # Who, and whether it is kept.
    st.tuples(st.just("toggle"), st.integers(0, 4), st.integers(0, 2)),
    # Asleep for how long, and thousandths of what is left.
    st.tuples(st.just("reset"), st.integers(1, 60), st.integers(0, 900)),
)


class Processor:
    """Its counter as a file shows it, and its clocks."""

    def __init__(self, root: Path) -> None:
        self.file = zone(root, "intel-rapl:0", "package-0", 0, RANGE_UJ) / "energy_uj"
        self.now_ns, self.slept_ns, self.raw_uj = S, 0, 0
        self.meter = RaplMeter(
            root, monotonic_ns=lambda: self.now_ns, boottime_ns=lambda: self.now_ns + self.slept_ns, observe_ns=1
        )

    def spends(self, elapsed_ns: int, uj: int) -> None:
        self.now_ns += elapsed_ns
        self.shows((self.raw_uj + uj) % RANGE_UJ)

    def shows(self, raw_uj: int) -> None:
        self.raw_uj = raw_uj
        self.file.write_text(f"{raw_uj}\n")


@settings(max_examples=examples(60))
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_what_a_wrapping_counter_counted_is_somewhere_once(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        processor = Processor(Path(folder))
        epochs, serial = itertools.count(1), itertools.count(1)
        allocation = Allocation(processor.meter.domains(), lambda: next(epochs).to_bytes(16, "big"))
        cover = allocation.cover("m")
        spent: Counter[bytes] = Counter()  # by epoch, while it could be counted
        receipts: Counter[bytes] = Counter()
        active: dict[int, bytes] = {}
        allocation.tick(processor.meter.read())

        def end(slot: int, keep: bool) -> None:
            energy = allocation.end(active.pop(slot), processor.now_ns, keep=keep)
            assert energy.uj is None or energy.uj >= 0
            if energy.epoch is not None:
                receipts[energy.epoch] += energy.uj or 0
                assert energy.uj == sum(source.uj for source in energy.sources)

        for what, first, second in steps:
            before = allocation.totals().epoch
            if what == "spend":
                uj = first * MAX_WATTS * second // 10**6
                processor.spends(first, uj)
                (reading,) = readings = processor.meter.read()
                allocation.tick(readings)
                assert reading.uj is not None
                assert not reading.reset
                spent[before] += uj
            elif what == "reset" and processor.raw_uj > 1000:
                processor.slept_ns += first * S
                processor.shows(processor.raw_uj * second // 1000)
                (reading,) = readings = processor.meter.read()
                allocation.tick(readings)
                assert reading.reset
                assert allocation.totals().epoch != before
            elif what == "toggle" and first in active:
                end(first, keep=second > 0)
            elif what == "toggle":
                active[first] = bytes([first]) + next(serial).to_bytes(15, "big")
                allocation.begin(active[first], cover, processor.now_ns)
        for slot in list(active):
            end(slot, keep=True)
        for totals in [*allocation.ended(), allocation.totals()]:
            for row in totals.domains:
                counted = row.last_uj - row.first_uj
                assert counted == spent[totals.epoch]
                assert counted == receipts[totals.epoch] + row.idle_uj + row.unattributed_uj
        processor.meter.close()
