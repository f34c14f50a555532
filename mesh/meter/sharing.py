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


class Share:
    """One serve's part of one domain; `opened_*` are the counter's sums when it began, so that a tick costs the same
    for any number of sharers. `crowd` is where in the counter's list of crowds its own begins."""

    __slots__ = (
        "counter", "crowd", "extra_uj", "fault", "guarded", "opened_each", "opened_gap_ns", "opened_ns", "opened_uj",
    )  # fmt: skip

    def __init__(self, counter: Counter, guarded: bool) -> None:
        self.counter = counter
        self.opened_each = counter.each
        self.opened_uj = 0 if counter.row is None else counter.row.last_uj
        self.opened_ns = counter.last_ns
        self.opened_gap_ns = counter.gap_ns
        self.crowd = counter.crowds
        self.guarded = guarded
        self.fault = counter.fault
        self.extra_uj = 0

    @property
    def held_uj(self) -> int:
        return self.counter.each - self.opened_each + self.extra_uj

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
    # `crowd_new`: somebody came since the latest one, so that the next is not just what is left of it.
    crowds: int = 0
    crowd_new: bool = False
    crowd_at: list[int] = field(default_factory=list)
    crowd_of: list[int] = field(default_factory=list)
    source: EnergySource = field(init=False)  # what receipts say of it, but for the figure

    def __post_init__(self) -> None:
        domain = self.domain
        self.source = EnergySource.of(
            domain=domain.name, method=domain.method, uj=0, resolution_ns=domain.resolution_ns
        )

    def open_share(self, serve_id: bytes) -> Share:
        active = self.active
        rested = not active and (
            self.busy_until_ns is None or self.last_ns - self.busy_until_ns >= self.domain.resolution_ns
        )
        share = active[serve_id] = Share(self, rested)
        self.order = None
        self.crowd_new = True
        if self.fault is not None:
            self.moved = True
        return share

    def close_share(self, serve_id: bytes, until_ns: int = 0) -> None:
        """`until_ns` is when it ended, where that was after the latest reading."""
        share = self.active.pop(serve_id)
        self.order = None
        self.busy_until_ns = self.last_ns if self.last_ns > until_ns else until_ns
        if self.fault is not None:
            self.moved = True
            share.fault = share.fault or self.fault

    def note_crowd(self) -> None:
        """Those that are active now, two or more, were so together for more than an instant."""
        count, of, at = len(self.active), self.crowd_of, self.crowd_at
        while of and of[-1] <= count:
            of.pop()
            at.pop()
        of.append(count)
        at.append(self.crowds)
        self.crowds += 1
        self.crowd_new = False

    def advance(self, row: Row, uj: int, at_ns: int, *, gap: bool) -> None:
        """Divide what was counted since the reading before."""
        delta, elapsed = uj - row.last_uj, max(0, at_ns - self.last_ns)
        if gap:
            self.gap_ns += elapsed
        if self.crowd_new and len(self.active) > 1 and (delta or elapsed):
            self.note_crowd()
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
