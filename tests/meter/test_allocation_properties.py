"""Conservation: whatever happens, every microjoule that a counter showed is somewhere, once. EN-10 b."""

from __future__ import annotations

import itertools
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mesh.meter.allocation import Allocation, EpochTotals
from mesh.meter.protocol import Domain, Reading
from mesh.schema.energy import Energy
from tests.support.examples import examples

RECIPES = ["c", "cg", "cp", "g", "gp", "p", "cgp"]  # each counted by what its letters begin


def counting(letter: str) -> frozenset[str]:
    return frozenset(recipe for recipe in RECIPES if letter in recipe)


# Two that count the same engines, with another's name between theirs.
DOMAINS = (
    Domain("cpu", "cpu-time@15W", 10, counting("c"), modelled=True),
    Domain("gpu0", "nvml-total", 25, counting("g"), modelled=False),
    Domain("pkg", "rapl", 1, counting("p"), modelled=False),
    Domain("dram", "rapl", 3, counting("p"), modelled=False),
)
NAMES = [domain.name for domain in DOMAINS]


class Books(RuleBasedStateMachine):
    """Random overlaps, ticks, failed readings, resets, ends, aborts, seals. Beside the allocation it keeps only what it
    was told: the readings of each epoch, and the receipts."""

    running = Bundle("running")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        epochs = itertools.count(1)
        self.allocation = Allocation(DOMAINS, lambda: next(epochs).to_bytes(16, "big"))
        self.covers = {recipe: self.allocation.cover(recipe) for recipe in RECIPES}
        self.now = 0
        self.counts = dict.fromkeys(NAMES, 1000)
        self.seen: dict[tuple[bytes, str], tuple[int, int]] = {}  # first and last reading of an epoch
        self.receipts: dict[tuple[bytes, str], int] = defaultdict(int)
        self.serves = 0
        self.over: dict[bytes, Energy] = {}

    @rule(
        elapsed=st.integers(0, 60),
        deltas=st.tuples(*[st.one_of(st.none(), st.integers(0, 40), st.integers(0, 10**12)) for _ in NAMES]),
        marks=st.lists(
            st.tuples(st.sampled_from(NAMES), st.sampled_from(["reset", "fall", "gap", "absent"])), max_size=2
        ),
    )
    def tick(self, elapsed: int, deltas: tuple[int | None, ...], marks: list[tuple[str, str]]) -> None:
        self.now += elapsed
        readings, reset = [], set()
        before = self.allocation.totals().epoch
        for name, delta in zip(NAMES, deltas, strict=True):
            mine = {mark for where, mark in marks if where == name}
            if "absent" in mine:
                continue
            if delta is None:
                readings.append(Reading(name, self.now, None, "lost"))
                continue
            self.counts[name] = delta % 7 if "fall" in mine else self.counts[name] + delta
            readings.append(Reading(name, self.now, self.counts[name], reset="reset" in mine, gap="gap" in mine))
            known = self.seen.get((before, name))
            if known is not None and (self.counts[name] < known[1] or "reset" in mine):
                reset.add(name)
        self.allocation.tick(readings)
        epoch = self.allocation.totals().epoch
        assert (epoch != before) == bool(reset)
        for reading in readings:
            if reading.uj is not None and reading.domain not in reset:
                first, _ = self.seen.get((before, reading.domain), (reading.uj, 0))
                self.seen[before, reading.domain] = (first, reading.uj)
        for name in NAMES if reset else ():
            if (before, name) in self.seen:
                start = self.counts[name] if name in reset else self.seen[before, name][1]
                self.seen[epoch, name] = (start, start)

    @rule(target=running, low=st.binary(min_size=1, max_size=1), on=st.sampled_from(RECIPES))
    def begin(self, low: bytes, on: str) -> bytes:
        self.serves += 1
        serve = low + self.serves.to_bytes(15, "big")
        self.allocation.begin(serve, self.covers[on], self.now)
        return serve

    @rule(target=running, low=st.binary(min_size=1, max_size=1), on=st.sampled_from(RECIPES))
    def begin_between(self, low: bytes, on: str) -> bytes:
        """The Metering's other way in; where the latest reading was no good it takes the first."""
        self.serves += 1
        serve = low + self.serves.to_bytes(15, "big")
        if not self.allocation.begin(serve, self.covers[on], self.now, between=True):
            assert serve not in self.allocation
            self.allocation.begin(serve, self.covers[on], self.now)
        return serve

    @rule(target=ended, serve=consumes(running), keep=st.booleans(), later=st.integers(0, 6))
    def end_between(self, serve: bytes, keep: bool, later: int) -> bytes:
        energy = self.allocation.end_between(serve, self.now + later, keep=keep)
        if energy is None:
            assert serve in self.allocation
            energy = self.allocation.end(serve, self.now, keep=keep)
        else:
            assert energy.basis != "measured"
        return self.ended_with(serve, energy, keep)

    @rule(target=ended, serve=consumes(running), keep=st.booleans(), guarded=st.booleans())
    def end(self, serve: bytes, keep: bool, guarded: bool) -> bytes:
        return self.ended_with(serve, self.allocation.end(serve, self.now, keep=keep, guarded=guarded), keep)

    def ended_with(self, serve: bytes, energy: Energy, keep: bool) -> bytes:
        assert Energy.from_map(energy.to_map()) == energy
        assert keep or energy.basis == "absent"
        assert energy.uj is None or energy.epoch == self.allocation.totals().epoch
        assert energy.window_uj is None or energy.uj is None or energy.uj <= energy.window_uj
        self.over[serve] = energy
        return serve

    @rule(serve=consumes(ended))
    def sealed(self, serve: bytes) -> None:
        self.allocation.sealed(serve)
        energy = self.over[serve]
        for source in energy.sources:
            assert energy.epoch is not None
            self.receipts[energy.epoch, source.domain] += source.uj

    # two rules: one choosing from either bundle is filtered out whenever one of them is empty
    @rule(serve=consumes(running))
    def discard_running(self, serve: bytes) -> None:
        self.allocation.discard(serve, self.now)

    @rule(serve=consumes(ended))
    def discard_ended(self, serve: bytes) -> None:
        self.allocation.discard(serve, self.now)

    @invariant()
    def every_microjoule_is_somewhere_once(self) -> None:
        epochs: list[EpochTotals] = [*self.allocation.ended(), self.allocation.totals()]
        for totals in epochs:
            for row in totals.domains:
                where = (totals.epoch, row.domain)
                assert (row.first_uj, row.last_uj) == self.seen[where]
                assert row.last_uj - row.first_uj == (
                    self.receipts[where] + row.idle_uj + row.unattributed_uj + row.open_uj
                )


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(120), stateful_step_count=40)


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("tick"), st.integers(0, 1000)),
            st.tuples(st.just("toggle"), st.integers(0, 5)),
        ),
        max_size=60,
    )
)
def test_shares_equal_those_of_a_division_done_the_long_way(steps: list[tuple[str, int]]) -> None:
    allocation = Allocation([Domain("d", "m", 0, None, modelled=True)], lambda: bytes(16))
    counter, now, serial = 0, 0, itertools.count()
    allocation.tick([Reading("d", now, counter)])
    shares: dict[bytes, int] = {}
    names: dict[int, bytes] = {}

    def end(slot: int) -> None:
        serve = names.pop(slot)
        share = shares.pop(serve)
        energy = allocation.end(serve, now)
        assert energy.uj == (share if energy.reason is None else None)

    for what, n in steps:
        if what == "tick":
            counter, now = counter + n, now + 1
            allocation.tick([Reading("d", now, counter)])
            for place, serve in enumerate(sorted(shares)):
                shares[serve] += n // len(shares) + (place < n % len(shares))
        elif n in names:
            end(n)
        else:
            serve = bytes([n]) + next(serial).to_bytes(15, "big")
            names[n], shares[serve] = serve, 0
            allocation.begin(serve, allocation.cover("m"), now)
    for slot in list(names):
        end(slot)
