"""The arithmetic under `allocation`: counters, the pools of serves that share what they count, and at which sums each
of those serves began. A beginning or an end costs the same for any number of sharers, and a reading costs only what
putting them in order does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from mesh.meter.protocol import Domain
from mesh.schema.energy import Energy, EnergySource


@dataclass(slots=True)
class Row:
    """A domain's books in one epoch, in microjoules of its counter."""

    first_uj: int
    last_uj: int
    idle_uj: int = 0
    unattributed_uj: int = 0


@dataclass(slots=True)
class Counter:
    """What one domain counted; `place` is its own in its pool. Raises SchemaError where no receipt could hold the
    domain's names."""

    domain: Domain
    place: int
    row: Row | None = None  # None until the first good reading
    last_ns: int = 0
    each: int = 0  # microjoules that a serve active since the beginning would hold, remainders aside
    gap_ns: int = 0
    fault: str | None = "no-reading"  # why the latest reading was no good
    moved: bool = False  # the sharers changed while it could not be read
    _source: EnergySource = field(init=False)  # what receipts say of it, but for the figure
    # with those figures that shares have at this reading
    _sources: dict[int, EnergySource] = field(default_factory=dict)

    def __post_init__(self) -> None:
        domain = self.domain
        self._source = EnergySource.of(
            domain=domain.name, method=domain.method, uj=0, resolution_ns=domain.resolution_ns
        )

    def source_of(self, uj: int) -> EnergySource:
        """What a receipt says of a share of `uj`; of many that end at one reading most have one of a few figures."""
        source = self._sources.get(uj)
        if source is None:
            source = self._sources[uj] = self._source.beside("uj", uj)
        return source

    def turn(self) -> None:
        """A reading was taken, good or not: what was said as of the one before is over."""
        if self._sources:
            self._sources.clear()

    def advance(self, row: Row, uj: int, at_ns: int, pool: Pool, *, gap: bool) -> None:
        """Divide what was counted since the reading before."""
        delta, elapsed = uj - row.last_uj, max(0, at_ns - self.last_ns)
        if gap:
            self.gap_ns += elapsed
        if delta or elapsed:
            pool.lasted = True
        if self.moved:
            row.unattributed_uj += delta
        elif not pool.active:
            row.idle_uj += delta
        else:
            quotient, remainder = divmod(delta, len(pool.active))
            self.each += quotient
            if remainder:
                pool.give(self.place, remainder)
        row.last_uj = uj
        self.seen(at_ns)

    def seen(self, at_ns: int) -> None:
        self.last_ns = max(self.last_ns, at_ns)
        self.fault = None
        self.moved = False


class Start:
    """A pool's sums as of a reading, in the order of its counters: all that is known of a serve that began there, and
    the same for all who did. `crowd` is where in the pool's list of crowds their own begin; `guarded` where one came
    to counters that had rested. `faults` are those of counters that could not be read, None where there were none."""

    __slots__ = ("crowd", "each", "faults", "gap_ns", "guarded", "ns", "uj")

    def __init__(self, pool: Pool, *, guarded: bool = False, fault: str | None = None) -> None:
        counters = pool.counters
        self.each = [counter.each for counter in counters]
        self.uj = [0 if counter.row is None else counter.row.last_uj for counter in counters]
        self.ns = [counter.last_ns for counter in counters]
        self.gap_ns = [counter.gap_ns for counter in counters]
        self.faults: Sequence[str | None] | None = None
        if fault is not None:
            self.faults = [fault] * len(counters)
        elif pool.fault is not None:
            self.faults = [counter.fault for counter in counters]
        self.guarded = guarded
        self.crowd = pool.crowds


# Where a serve began, and what remainders gave it beside, by counter.
Share = tuple[Start, tuple[int, ...] | None]


class Pool:
    """Counters that count the same engines, so that the same serves share each of them, and those serves. `told` are
    the figures given at the present reading by where their serves began; all pools have it in common."""

    def __init__(self, counters: Sequence[Counter], told: dict[tuple[Share, ...], Energy]) -> None:
        self.counters = counters
        self.active: dict[bytes, Start] = {}
        self.extra: dict[bytes, list[int]] = {}  # what remainders gave to some of them, by counter
        self.fault = counters[0].fault  # the first one that there is, where a counter could not be read
        self.resolution_ns = max(counter.domain.resolution_ns for counter in counters)
        self.modelled = any(counter.domain.modelled for counter in counters)
        self.last_ns = 0  # the latest of its counters' readings
        self.lasted = False  # whether the reading that is being taken came later than the one before, or counted more
        # How many shared it, noted whenever they did so for a while: counted through, and of those only the ones that
        # no later one reached, so that the most since any point is the first at or after it.
        # `_crowd_new`: somebody came since the latest one, so that the next is not just what is left of it.
        # `_together`: how many came between two readings to share it, where that is yet to be noted; it is before
        # anybody leaves.
        self.crowds = 0
        self._crowd_new = False
        self._together = 0
        self._crowd_at: list[int] = []
        self._crowd_of: list[int] = []
        self._busy_until_ns: int | None = None
        self._order: list[bytes] | None = None  # the active ones sorted, where nobody came or went since they were
        self._start: Start | None = None  # where those who come now begin
        self._told = told

    def join(self, serve_id: bytes, between: bool) -> None:
        """Count a serve as active from the latest reading on; `between` where it came after that."""
        if self._together and not between:
            self.note_crowd(self._together)  # those were so without it
        active, start = self.active, self._start
        if not active and self._rested():
            start = Start(self, guarded=True)
        elif start is None:
            start = self._start = Start(self)
        active[serve_id] = start
        self._order = None
        self._crowd_new = True
        if between and len(active) > 1:
            self._together = len(active)
        if self.fault is not None:
            self._move()

    def _rested(self) -> bool:
        busy_until_ns = self._busy_until_ns
        return busy_until_ns is None or all(
            counter.last_ns - busy_until_ns >= counter.domain.resolution_ns for counter in self.counters
        )

    def _move(self) -> None:
        for counter in self.counters:
            if counter.fault is not None:
                counter.moved = True

    def leave(self, serve_id: bytes, until_ns: int, between: bool) -> Share:
        """What it held. `until_ns` is when it ended; `between` where that was after the latest reading, until when it
        was company."""
        if self._crowd_new and between and len(self.active) > 1:
            self.note_crowd(len(self.active))
        elif self._together:
            self.note_crowd(self._together)
        start = self.active.pop(serve_id)
        extra = self.extra.pop(serve_id, None) if self.extra else None
        self._order = None
        self._busy_until_ns = until_ns if until_ns > self.last_ns else self.last_ns
        if self.fault is not None:
            self._move()
        return start, None if extra is None else tuple(extra)

    def give(self, place: int, remainder: int) -> None:
        """One more microjoule of the counter there to so many of the active ones, the lowest serve ids first."""
        if self._order is None:
            self._order = sorted(self.active)
        extra, nothing = self.extra, [0] * len(self.counters)
        for serve_id in self._order[:remainder]:
            if serve_id not in extra:
                extra[serve_id] = nothing.copy()
            extra[serve_id][place] += 1

    def held_uj(self, share: Share) -> list[int]:
        """What it comes to by counter."""
        start, extra = share
        held = [counter.each - each for counter, each in zip(self.counters, start.each, strict=True)]
        return held if extra is None else [uj + more for uj, more in zip(held, extra, strict=True)]

    def all_held_uj(self) -> list[int]:
        """What those who are active hold together, by counter."""
        return [
            counter.each * len(self.active)
            - sum([start.each[place] for start in self.active.values()])
            + sum([extra[place] for extra in self.extra.values()])
            for place, counter in enumerate(self.counters)
        ]

    def end_epoch(self) -> None:
        """Those who are active hold nothing in the new one, and will have no figure."""
        ended = Start(self, fault="epoch-ended")
        self.active = dict.fromkeys(self.active, ended)
        self.extra.clear()

    def turn(self) -> None:
        """A reading was taken of every counter, good or not."""
        if self._crowd_new and self.lasted and (sharers := len(self.active)) > 1:
            self.note_crowd(sharers)
        elif self._together:
            self.note_crowd(self._together)
        self.lasted = False
        self._start = None
        self.fault = None
        for counter in self.counters:
            counter.turn()
            if counter.last_ns > self.last_ns:
                self.last_ns = counter.last_ns
            if self.fault is None:
                self.fault = counter.fault

    def note_crowd(self, count: int) -> None:
        """So many, two or more, were active together for more than an instant."""
        of, at = self._crowd_of, self._crowd_at
        while of and of[-1] <= count:
            of.pop()
            at.pop()
        of.append(count)
        at.append(self.crowds)
        self.crowds += 1
        self._crowd_new = False
        self._together = 0
        self._start = None
        self._told.clear()

    def peak_since(self, crowd: int) -> int:
        """The most sharers at once since there, at least one."""
        if crowd == self.crowds:
            return 1
        place = bisect_left(self._crowd_at, crowd)
        return self._crowd_of[place] if place < len(self._crowd_of) else 1


class Cover:
    """The pools that count one engine's work. `places` are their counters in the order of the domains' names, each with
    its pool's place here. `slack_ns` is how old the latest reading may be to stand for one taken now, -1 where none
    ever does."""

    __slots__ = ("places", "pools", "slack_ns", "twice_ns")

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = pools
        places = [(at, counter) for at, pool in enumerate(pools) for counter in pool.counters]
        self.places = sorted(places, key=lambda place: place[1].domain.name)
        resolutions = [counter.domain.resolution_ns for _, counter in places]
        self.slack_ns = min(resolutions, default=0) // 4 or -1
        self.twice_ns = 2 * max(resolutions, default=0)  # below which a window resolves nothing
