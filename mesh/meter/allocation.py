"""Rule `equal/1`: what a domain counted between two readings is divided equally among the serves active in it.

Whole microjoules; the remainder goes one each to the lowest serve ids. With nobody active it is idle. The share of a
serve that ends without a figure is unattributed. So for every epoch and domain, always and exactly:

    last - first = shares of the receipts + idle + unattributed + open

where `open` is what serves hold whose receipt is not sealed yet. There is no clock, thread or randomness in here: the
readings, the instants and the epoch ids come in, the figures go out.

Where the rule has to choose:

- A serve needs a readable counter when it begins and when it ends; else it has no figure. It still counts as a sharer,
  so that the others do not pay for it.
- A stretch between two good readings with a failed one inside is divided like any other if the same serves were active
  throughout, else it is unattributed; either way it is not covered.
- An epoch ends for all domains at once, because a receipt names one epoch. A serve that crosses the end has no figure:
  what it held is unattributed in the old epoch, what it will hold in the new one likewise.
- A counter that did not move in a serve's whole window resolves nothing about it; 0 would be a claim.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mesh.errors import MeterError
from mesh.meter.protocol import Domain, Reading, is_reason
from mesh.schema.checkpoint import DomainTotals
from mesh.schema.energy import BASES, Basis, Energy, EnergySource
from mesh.schema.limits import MAX_SOURCES, MAX_UINT

RULE = "equal/1"
KEPT_EPOCHS = 16  # ended epochs whose totals can still be asked for
MAX_COUNTER_UJ = MAX_UINT // MAX_SOURCES  # so that the sum over a receipt's sources always fits; 40 GWh


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """What every domain counted in one epoch, for a checkpoint; sorted by domain. A domain never read is not in it."""

    epoch: bytes
    domains: list[DomainTotals]


@dataclass(frozen=True, slots=True)
class Counted:
    """A domain as of its latest reading, taken at the monotonic `at_ns`: the microjoules `uj` that it counted since the
    epoch began, None with the `fault` where that reading was no good."""

    domain: Domain
    at_ns: int
    uj: int | None
    fault: str | None


@dataclass(slots=True)
class _Row:
    """A domain's books in one epoch, in microjoules of its counter."""

    first_uj: int
    last_uj: int
    idle_uj: int = 0
    unattributed_uj: int = 0


@dataclass(slots=True)
class _Share:
    """One serve's part of one domain; `opened_*` are the counter's sums when it began, so that a tick costs the same
    for any number of sharers."""

    opened_each: int
    opened_uj: int
    opened_ns: int
    opened_gap_ns: int
    guarded: bool
    fault: str | None
    extra_uj: int = 0
    peak: int = 1


@dataclass(slots=True)
class _Counter:
    domain: Domain
    row: _Row | None = None  # None until the first good reading
    last_ns: int = 0
    each: int = 0  # microjoules that a serve active since the beginning would hold, remainders aside
    gap_ns: int = 0
    fault: str | None = "no-reading"  # why the latest reading was no good
    moved: bool = False  # the sharers changed while it could not be read
    stirred: bool = False  # they changed since the peaks were last noted
    busy_until_ns: int | None = None
    active: dict[bytes, _Share] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)

    def held(self, share: _Share) -> int:
        return self.each - share.opened_each + share.extra_uj

    def open_share(self, serve_id: bytes) -> None:
        rested = self.busy_until_ns is None or self.last_ns - self.busy_until_ns >= self.domain.resolution_ns
        self.active[serve_id] = _Share(
            opened_each=self.each,
            opened_uj=self.row.last_uj if self.row is not None else 0,
            opened_ns=self.last_ns,
            opened_gap_ns=self.gap_ns,
            guarded=rested and not self.active,
            fault=self.fault,
        )
        insort(self.order, serve_id)
        self._changed()

    def close_share(self, serve_id: bytes) -> _Share:
        share = self.active.pop(serve_id)
        del self.order[bisect_left(self.order, serve_id)]
        self.busy_until_ns = self.last_ns
        share.fault = share.fault or self.fault
        self._changed()
        return share

    def _changed(self) -> None:
        self.stirred = True
        self.moved = self.moved or self.fault is not None

    def advance(self, row: _Row, uj: int, at_ns: int, *, gap: bool) -> None:
        """Divide what was counted since the reading before."""
        delta, elapsed = uj - row.last_uj, max(0, at_ns - self.last_ns)
        if gap:
            self.gap_ns += elapsed
        if self.stirred and (delta or elapsed):
            for share in self.active.values():
                share.peak = max(share.peak, len(self.active))
            self.stirred = False
        if self.moved:
            row.unattributed_uj += delta
        elif not self.active:
            row.idle_uj += delta
        else:
            quotient, remainder = divmod(delta, len(self.active))
            self.each += quotient
            for serve_id in self.order[:remainder]:
                self.active[serve_id].extra_uj += 1
        row.last_uj = uj
        self.seen(at_ns)

    def seen(self, at_ns: int) -> None:
        self.last_ns = max(self.last_ns, at_ns)
        self.fault = None
        self.moved = False


@dataclass(slots=True)
class _Serve:
    began_ns: int
    domains: tuple[str, ...]


class Allocation:
    """The books of the running epoch and of the last ended ones. `draw` gives a new epoch id, 16 random bytes. Not
    thread-safe. Raises MeterError where two domains have one name or there are more than a receipt can hold."""

    def __init__(self, domains: Iterable[Domain], draw: Callable[[], bytes]) -> None:
        self._counters: dict[str, _Counter] = {}
        for domain in sorted(domains, key=lambda domain: domain.name):
            if domain.name in self._counters:
                raise MeterError(f"meter domain {domain.name!r}: two meters have a domain of this name")
            self._counters[domain.name] = _Counter(domain)
        if len(self._counters) > MAX_SOURCES:
            raise MeterError(f"meters: {len(self._counters)} domains, a receipt holds at most {MAX_SOURCES}")
        self._draw = draw
        self._epoch = draw()
        self._serves: dict[bytes, _Serve] = {}
        self._unsealed: dict[bytes, Energy] = {}
        self._ended: deque[tuple[bytes, dict[str, _Row]]] = deque(maxlen=KEPT_EPOCHS)

    def __contains__(self, serve_id: bytes) -> bool:
        return serve_id in self._serves

    def __len__(self) -> int:
        """Serves active now."""
        return len(self._serves)

    def covering(self, recipe_id: str) -> tuple[str, ...]:
        """The domains that count this engine's work."""
        return tuple(name for name, counter in self._counters.items() if counter.domain.covers(recipe_id))

    def tick(self, readings: Iterable[Reading]) -> None:
        """Take one reading of every domain. A domain that is not among them could not be read."""
        seen = {reading.domain: reading for reading in readings}
        resets: list[tuple[_Counter, Reading, int]] = []
        for name, counter in self._counters.items():
            reading = seen.get(name)
            uj, fault = (None, "no-reading") if reading is None else _judge(reading)
            if reading is None or uj is None:
                counter.fault = fault
            elif counter.row is None:
                counter.row = _Row(uj, uj)
                counter.seen(reading.at_ns)
            elif reading.reset or uj < counter.row.last_uj:
                resets.append((counter, reading, uj))
            else:
                counter.advance(counter.row, uj, reading.at_ns, gap=reading.gap or counter.fault is not None)
        if resets:
            # After the readings that continue their counters: what those counted still belongs to the old epoch.
            self._end_epoch()
            for counter, reading, uj in resets:
                counter.row = _Row(uj, uj)
                counter.seen(reading.at_ns)

    def begin(self, serve_id: bytes, domains: Sequence[str], at_ns: int) -> None:
        """Count a serve as active in `domains` from the latest tick on. `at_ns` is for its span alone."""
        if serve_id in self._serves or serve_id in self._unsealed:
            raise MeterError(f"serve {serve_id.hex()}: began twice")
        self._serves[serve_id] = _Serve(at_ns, tuple(sorted(domains)))
        for name in domains:
            self._counters[name].open_share(serve_id)

    def guard_ns(self, serve_id: bytes) -> int:
        """For how long after its end this serve must stay alone for its figure to be called measured; 0 where that is
        out of reach already. A counter shows what was spent up to one resolution late."""
        if serve_id not in self._serves:
            return 0
        counters = [self._counters[name] for name in self._serves[serve_id].domains]
        shares = [(counter, counter.active[serve_id]) for counter in counters]
        if any(
            counter.domain.modelled or not share.guarded or len(counter.active) > 1 or share.peak > 1
            for counter, share in shares
        ):
            return 0
        return max((counter.domain.resolution_ns for counter in counters), default=0)

    def end(self, serve_id: bytes, at_ns: int, *, keep: bool = True, guarded: bool = True) -> Energy:
        """End a serve at the latest tick and give its figure, held as open until `sealed`. Without `keep` there is none
        and its share is unattributed. `guarded`: the time of `guard_ns` passed with nobody else coming."""
        serve = self._serves.pop(serve_id)
        span_ns = max(0, at_ns - serve.began_ns)
        counters = [self._counters[name] for name in serve.domains]
        shares = [(counter, counter.close_share(serve_id)) for counter in counters]
        energy = _figure(shares, span_ns, self._epoch, guarded=guarded) if keep else absent("abandoned", span_ns)
        if energy.uj is not None:
            self._unsealed[serve_id] = energy
            return energy
        for counter, share in shares:
            if counter.row is not None:
                counter.row.unattributed_uj += counter.held(share)
        return energy

    def sealed(self, serve_id: bytes) -> None:
        """The receipt with this serve's figure exists: from now on the receipt holds it."""
        self._unsealed.pop(serve_id, None)

    def discard(self, serve_id: bytes, at_ns: int) -> None:
        """There will be no receipt with this serve's figure: what it holds is unattributed."""
        if serve_id in self._serves:
            self.end(serve_id, at_ns, keep=False)
        energy = self._unsealed.pop(serve_id, None)
        if energy is None:
            return
        for epoch, rows in self._epochs():
            if epoch == energy.epoch:
                for source in energy.sources:
                    rows[source.domain].unattributed_uj += source.uj

    def totals(self) -> EpochTotals:
        """The books of the running epoch."""
        return self._totals(self._epoch, self._rows())

    def counted(self) -> tuple[bytes, list[Counted]]:
        """The running epoch, and what each domain counted in it."""
        return self._epoch, [
            Counted(counter.domain, counter.last_ns, counter.row.last_uj - counter.row.first_uj, None)
            if counter.row is not None and counter.fault is None
            else Counted(counter.domain, counter.last_ns, None, counter.fault or "no-reading")
            for counter in self._counters.values()
        ]

    def ended(self) -> list[EpochTotals]:
        """The books of the last `KEPT_EPOCHS` ended epochs, oldest first."""
        return [self._totals(epoch, rows) for epoch, rows in self._ended]

    def _rows(self) -> dict[str, _Row]:
        return {name: counter.row for name, counter in self._counters.items() if counter.row is not None}

    def _epochs(self) -> Iterator[tuple[bytes, dict[str, _Row]]]:
        yield self._epoch, self._rows()
        yield from self._ended

    def _totals(self, epoch: bytes, rows: dict[str, _Row]) -> EpochTotals:
        held = dict.fromkeys(rows, 0)
        for energy in self._unsealed.values():
            if energy.epoch == epoch:
                for source in energy.sources:
                    held[source.domain] += source.uj
        if epoch == self._epoch:
            for name in rows:
                counter = self._counters[name]
                held[name] += sum(counter.held(share) for share in counter.active.values())
        domains = [
            DomainTotals(
                domain=name,
                first_uj=row.first_uj,
                last_uj=row.last_uj,
                idle_uj=row.idle_uj,
                unattributed_uj=row.unattributed_uj,
                open_uj=held[name],
            )
            for name, row in rows.items()
        ]
        return EpochTotals(epoch, domains)

    def _end_epoch(self) -> None:
        for counter in self._counters.values():
            for share in counter.active.values():
                if counter.row is not None:
                    counter.row.unattributed_uj += counter.held(share)
                share.opened_each, share.extra_uj, share.fault = counter.each, 0, "epoch-ended"
        self._ended.append((self._epoch, self._rows()))
        for counter in self._counters.values():
            if counter.row is not None:
                counter.row = _Row(counter.row.last_uj, counter.row.last_uj)
        self._epoch = self._draw()


def absent(reason: str, span_ns: int | None = None) -> Energy:
    """No figure, and why."""
    return Energy.of(basis="absent", sources=[], reason=reason, span_ns=span_ns)


def _judge(reading: Reading) -> tuple[int | None, str]:
    """The count, or the reason why there is none."""
    if reading.uj is None:
        return None, reading.reason if is_reason(reading.reason) and reading.reason else "meter-unreadable"
    if not 0 <= reading.uj <= MAX_COUNTER_UJ:
        return None, "counter-out-of-range"
    return reading.uj, ""


def _basis(counter: _Counter, share: _Share, *, guarded: bool) -> tuple[Basis, str | None]:
    if share.fault is not None or counter.row is None:
        return "absent", share.fault or "no-reading"
    if counter.last_ns - share.opened_ns < 2 * counter.domain.resolution_ns:
        return "unresolved", "span-under-resolution"
    if counter.row.last_uj == share.opened_uj:
        return "unresolved", "counter-still"
    if counter.domain.modelled:
        return "modelled", None
    alone = share.peak == 1 and share.guarded and guarded and counter.gap_ns == share.opened_gap_ns
    return ("measured" if alone else "allocated"), None


def _figure(shares: list[tuple[_Counter, _Share]], span_ns: int, epoch: bytes, *, guarded: bool) -> Energy:
    if not shares:
        return absent("no-meter", span_ns)
    judged = [_basis(counter, share, guarded=guarded) for counter, share in shares]
    basis, reason = max(judged, key=lambda found: BASES.index(found[0]))
    if basis == "absent":
        return Energy.of(basis=basis, sources=[], reason=reason, span_ns=span_ns)
    gap_ns = max(counter.gap_ns - share.opened_gap_ns for counter, share in shares)
    peak = max(share.peak for _, share in shares)
    company = peak > 1 or basis == "allocated"
    sources = [
        EnergySource(
            domain=counter.domain.name,
            method=counter.domain.method,
            uj=counter.held(share),
            resolution_ns=counter.domain.resolution_ns,
        )
        for counter, share in shares
        if reason is None
    ]
    return Energy.of(
        basis=basis,
        sources=sources,
        span_ns=span_ns,
        uj=sum(source.uj for source in sources) if reason is None else None,
        rule=RULE if company else None,
        window_uj=sum(c.row.last_uj - s.opened_uj for c, s in shares if c.row is not None) if company else None,
        peak_sharers=peak if company else None,
        covered_ns=max(0, span_ns - gap_ns) if gap_ns else None,
        epoch=epoch if reason is None else None,
        reason=reason,
    )
