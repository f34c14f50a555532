"""One domain's counter and the serves that share what it counts: the arithmetic under `allocation`, at a cost per
beginning and end that does not grow with the number of sharers, and per reading only by putting them in order."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from mesh.meter.protocol import Domain
from mesh.schema.energy import EnergySource


@dataclass(slots=True)
class Row:
    """A domain's books in one epoch, in microjoules of its counter."""

    first_uj: int
    last_uj: int
    idle_uj: int = 0
    unattributed_uj: int = 0


class Opened:
    """A counter's sums as of a reading: the same for all shares that are opened at it."""

    __slots__ = ("each", "gap_ns", "ns", "uj")

    def __init__(self, counter: Counter) -> None:
        self.each = counter.each
        self.uj = 0 if counter.row is None else counter.row.last_uj
        self.ns = counter.last_ns
        self.gap_ns = counter.gap_ns


class Share:
    """One serve's part of one domain; `opened` are the counter's sums when it began, so that a tick costs the same for
    any number of sharers. `crowd` is where in the counter's list of crowds its own begins."""

    __slots__ = ("counter", "crowd", "extra_uj", "fault", "guarded", "opened")

    def __init__(self, counter: Counter, opened: Opened, crowd: int, guarded: bool, fault: str | None) -> None:
        self.counter = counter
        self.opened = opened
        self.crowd = crowd
        self.guarded = guarded
        self.fault = fault
        self.extra_uj = 0

    @property
    def held_uj(self) -> int:
        return self.counter.each - self.opened.each + self.extra_uj

    def end_epoch(self) -> None:
        """It holds nothing in the new one, and will have no figure."""
        self.extra_uj, self.fault = self.opened.each - self.counter.each, "epoch-ended"

    @property
    def peak(self) -> int:
        """The most sharers at once since it began, this one among them."""
        counter = self.counter
        place = bisect_left(counter.crowd_at, self.crowd)
        return counter.crowd_of[place] if place < len(counter.crowd_of) else 1


@dataclass(slots=True)
class Counter:
    """Raises SchemaError where no receipt could hold the domain's names."""

    domain: Domain
    row: Row | None = None  # None until the first good reading
    last_ns: int = 0
    each: int = 0  # microjoules that a serve active since the beginning would hold, remainders aside
    gap_ns: int = 0
    fault: str | None = "no-reading"  # why the latest reading was no good
    moved: bool = False  # the sharers changed while it could not be read
    busy_until_ns: int | None = None
    active: dict[bytes, Share] = field(default_factory=dict)
    order: list[bytes] | None = None  # the active ones sorted, where nobody came or went since they were
    # How many shared it, noted whenever they did so for a while: counted through, and of those only the ones that no
    # later one reached, so that the most since any point is the first at or after it.
    # `crowd_new`: somebody came since the latest one, so that the next is not just what is left of it. `together`: how
    # many came between two readings to share it, where that is yet to be noted; it is before anybody leaves.
    crowds: int = 0
    crowd_new: bool = False
    together: int = 0
    crowd_at: list[int] = field(default_factory=list)
    crowd_of: list[int] = field(default_factory=list)
    opened: Opened | None = None  # the sums as of the latest reading, once a share was opened at it
    twice_ns: int = field(init=False)  # below which a window resolves nothing
    _source: EnergySource = field(init=False)  # what receipts say of it, but for the figure
    _sources: dict[int, EnergySource] = field(
        default_factory=dict
    )  # with those figures that shares have at this reading

    def __post_init__(self) -> None:
        domain = self.domain
        self.twice_ns = 2 * domain.resolution_ns
        self._source = EnergySource.of(
            domain=domain.name, method=domain.method, uj=0, resolution_ns=domain.resolution_ns
        )

    def open_share(self, serve_id: bytes) -> Share:
        active, opened, fault = self.active, self.opened, self.fault
        rested = not active and (
            self.busy_until_ns is None or self.last_ns - self.busy_until_ns >= self.domain.resolution_ns
        )
        if opened is None:
            opened = self.opened = Opened(self)
        share = active[serve_id] = Share(self, opened, self.crowds, rested, fault)
        self.order = None
        self.crowd_new = True
        if fault is not None:
            self.moved = True
        return share

    def source_of(self, uj: int) -> EnergySource:
        """What a receipt says of a share of `uj`; of many that end at one reading most have one of two figures."""
        source = self._sources.get(uj)
        if source is None:
            source = self._sources[uj] = self._source.changed(uj=uj)
        return source

    def turn(self) -> None:
        """A reading was taken, good or not: what was opened and what was said as of the one before is over."""
        self.opened = None
        if self._sources:
            self._sources.clear()

    def close_share(self, serve_id: bytes, until_ns: int = 0) -> None:
        """`until_ns` is when it ended, where that was after the latest reading."""
        if self.together:
            self.note_crowd(self.together)
        share = self.active.pop(serve_id)
        self.order = None
        self.busy_until_ns = self.last_ns if self.last_ns > until_ns else until_ns
        if self.fault is not None:
            self.moved = True
            share.fault = share.fault or self.fault

    def note_crowd(self, count: int) -> None:
        """So many, two or more, were active together for more than an instant."""
        of, at = self.crowd_of, self.crowd_at
        while of and of[-1] <= count:
            of.pop()
            at.pop()
        of.append(count)
        at.append(self.crowds)
        self.crowds += 1
        self.crowd_new = False
        self.together = 0

    def advance(self, row: Row, uj: int, at_ns: int, *, gap: bool) -> None:
        """Divide what was counted since the reading before."""
        delta, elapsed = uj - row.last_uj, max(0, at_ns - self.last_ns)
        if gap:
            self.gap_ns += elapsed
        if self.crowd_new and len(self.active) > 1 and (delta or elapsed):
            self.note_crowd(len(self.active))
        elif self.together:
            self.note_crowd(self.together)
        if self.moved:
            row.unattributed_uj += delta
        elif not self.active:
            row.idle_uj += delta
        else:
            quotient, remainder = divmod(delta, len(self.active))
            self.each += quotient
            if remainder and self.order is None:
                self.order = sorted(self.active)
            for serve_id in (self.order or ())[:remainder]:
                self.active[serve_id].extra_uj += 1
        row.last_uj = uj
        self.seen(at_ns)

    def seen(self, at_ns: int) -> None:
        self.last_ns = max(self.last_ns, at_ns)
        self.fault = None
        self.moved = False
