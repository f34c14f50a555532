"""The arithmetic under `allocation`: counters, the pools of serves that share what they count, and at which sums each
of those serves began. A beginning or an end costs the same for any number of sharers, and a reading costs only what
putting them in order does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
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
    """What one domain counted; `place` is its own in its pool, `number` among all counters. Raises SchemaError where no
    receipt could hold the domain's names."""

    domain: Domain
    place: int
    number: int
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
        elif not pool.sharers:
            row.idle_uj += delta
        else:
            quotient, remainder = divmod(delta, pool.sharers)
            self.each += quotient
            if remainder:
                pool.give(self.number, remainder)
        row.last_uj = uj
        self.seen(at_ns)

    def held_uj(self, start: Start, extra: Extra) -> int:
        """What one who began there holds of it."""
        held_uj = self.each - start.each[self.place]
        return held_uj if extra is None else held_uj + extra[self.number]

    def seen(self, at_ns: int) -> None:
        self.last_ns = max(self.last_ns, at_ns)
        self.fault = None
        self.moved = False


class Start:
    """A pool's sums as of a reading, in the order of its counters: all that is known there of a serve that began then,
    and the same for all who did. `crowd` is where in the pool's list of crowds their own begin; `guarded` where one
    came to counters that had rested. `faults` are those of counters that could not be read, None where there were
    none."""

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


class Beginning:
    """Where serves of one cover began: a start in each of its pools."""

    __slots__ = ("cover", "starts")

    def __init__(self, cover: Cover, starts: Sequence[Start]) -> None:
        self.cover = cover
        self.starts = starts


# Whole microjoules that remainders gave a serve beside, by the counters' numbers; None where they gave it nothing.
Extra = tuple[int, ...] | None


class Moment:
    """What is the same for all who come or go at one reading, for as long as their company is. `beginnings`: where
    those begin who come between this reading and the next. `told`: the figures given, by where those who have them
    began and what they hold beside; of no pool whose next crowd is not noted yet."""

    __slots__ = ("beginnings", "told")

    def __init__(self) -> None:
        self.beginnings: dict[Cover, Beginning] = {}
        self.told: dict[tuple[Beginning, Extra], Energy] = {}

    def over(self) -> None:
        self.beginnings.clear()
        self.told.clear()


@dataclass(frozen=True, slots=True)
class Present:
    """Who is there: all serves, each with when and where it began, and what remainders gave some of them, where to
    others they gave `nothing`; `moment` is what they have in common."""

    nothing: tuple[int, ...]
    serves: dict[bytes, tuple[int, Beginning]] = field(default_factory=dict)
    extras: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    moment: Moment = field(default_factory=Moment)


class Pool:
    """Counters that count the same engines, so that the same serves share each of them: `sharers` many of those who
    are `present` anywhere."""

    def __init__(self, counters: Sequence[Counter], present: Present) -> None:
        self.counters = counters
        self.sharers = 0
        self.fault = counters[0].fault  # the first one that there is, where a counter could not be read
        self.resolution_ns = max(counter.domain.resolution_ns for counter in counters)
        self.modelled = any(counter.domain.modelled for counter in counters)
        self.last_ns = 0  # the latest of its counters' readings
        self.lasted = False  # whether the reading that is being taken came later than the one before, or counted more
        # How many shared it, noted whenever they did so for a while: counted through, and of those only the ones that
        # no later one reached, so that the most since any point is the first at or after it.
        # `crowd_new`: somebody came since the latest one, so that the next is not just what is left of it.
        # `crowd_between`: somebody came between two readings, and is company from then on.
        self.crowds = 0
        self.crowd_new = False
        self.crowd_between = False
        self._crowd_at: list[int] = []
        self._crowd_of: list[int] = []
        self._busy_until_ns: int | None = None
        self._order: list[bytes] | None = None  # the sharers sorted, while a reading is divided
        self._present = present

    def join(self, between: bool) -> Start:
        """Count one more from the latest reading on; `between` where it came after that. Where it began."""
        if self.crowd_between and not between:
            self._met()  # those were so without it
        start = Start(self, guarded=not self.sharers and self._rested())
        self.sharers += 1
        self.crowd_new = True
        self.crowd_between = between
        if self.fault is not None:
            self._move()
        return start

    def _rested(self) -> bool:
        busy_until_ns = self._busy_until_ns
        return busy_until_ns is None or all(
            counter.last_ns - busy_until_ns >= counter.domain.resolution_ns for counter in self.counters
        )

    def _move(self) -> None:
        for counter in self.counters:
            if counter.fault is not None:
                counter.moved = True

    def leave(self, until_ns: int, between: bool) -> None:
        """One of them has ended. `until_ns` is when; `between` where that was after the latest reading, until when it
        was company."""
        sharers = self.sharers
        if self.crowd_new and sharers > 1 and (between or self.crowd_between):
            self.note_crowd(sharers)
        self.sharers = sharers - 1
        if sharers == 1:
            self.rest(until_ns)
        if self.fault is not None:
            self._move()

    def rest(self, since_ns: int) -> None:
        """The last of them has ended."""
        self._busy_until_ns = since_ns if since_ns > self.last_ns else self.last_ns

    def give(self, number: int, remainder: int) -> None:
        """One more microjoule of that counter to so many of the sharers, the lowest serve ids first."""
        if self._order is None:
            self._order = sorted(self._ids())
        extras, nothing = self._present.extras, self._present.nothing
        raised: dict[tuple[int, ...], tuple[int, ...]] = {}
        for serve_id in self._order[:remainder]:
            held = extras.get(serve_id, nothing)
            if held not in raised:
                raised[held] = *held[:number], held[number] + 1, *held[number + 1 :]
            extras[serve_id] = raised[held]

    def _ids(self) -> Iterable[bytes]:
        serves = self._present.serves
        if self.sharers == len(serves):
            return serves
        return [serve_id for serve_id, (_, beginning) in serves.items() if self in beginning.cover.pools]

    def all_held_uj(self) -> list[int]:
        """What the sharers hold together, by counter."""
        together = [0] * len(self.counters)
        for serve_id, (_, beginning) in self._present.serves.items():
            extra = self._present.extras.get(serve_id)
            for pool, start in zip(beginning.cover.pools, beginning.starts, strict=True):
                if pool is self:
                    for counter in self.counters:
                        together[counter.place] += counter.held_uj(start, extra)
        return together

    def turn(self) -> None:
        """A reading was taken of every counter, good or not."""
        if self.crowd_new and (self.lasted or self.crowd_between):
            self._met()
        self.crowd_between = False
        self.lasted = False
        self.fault = None
        self._order = None
        for counter in self.counters:
            counter.turn()
            if counter.last_ns > self.last_ns:
                self.last_ns = counter.last_ns
            if self.fault is None:
                self.fault = counter.fault

    def _met(self) -> None:
        if self.sharers > 1:
            self.note_crowd(self.sharers)

    def note_crowd(self, count: int) -> None:
        """So many, two or more, were active together for more than an instant."""
        of, at = self._crowd_of, self._crowd_at
        while of and of[-1] <= count:
            of.pop()
            at.pop()
        of.append(count)
        at.append(self.crowds)
        self.crowds += 1
        self.crowd_new = self.crowd_between = False
        self._present.moment.over()

    def peak_since(self, crowd: int) -> int:
        """The most sharers at once since there, at least one."""
        if crowd == self.crowds:
            return 1
        place = bisect_left(self._crowd_at, crowd)
        return self._crowd_of[place] if place < len(self._crowd_of) else 1
