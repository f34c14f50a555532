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
- A serve begins and ends at a reading. One that is no older than a quarter of its counter's resolution stands for one
  taken now: asked again so soon the counter would hardly show more, and what it shows is blurred by a whole resolution
  anyway. The books add up all the same, since a division is only ever made at a reading. Whoever comes or goes in
  between is company to those who are there, and `measured` needs a reading taken after the end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mesh.errors import MeterError
from mesh.meter.figure import absent, figure
from mesh.meter.protocol import Domain, Reading, is_reason
from mesh.meter.sharing import Beginning, Counter, Cover, Pool, Present, Row, Start
from mesh.schema.checkpoint import DomainTotals
from mesh.schema.energy import Energy
from mesh.schema.limits import MAX_SOURCES, MAX_UINT

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


class Allocation:
    """The books of the running epoch and of the last ended ones. `draw` gives a new epoch id, 16 random bytes. Not
    thread-safe. Raises MeterError where two domains have one name or there are more than a receipt can hold."""

    def __init__(self, domains: Iterable[Domain], draw: Callable[[], bytes]) -> None:
        self._counters: dict[str, Counter] = {}
        pools: dict[frozenset[str] | None, list[Counter]] = defaultdict(list)
        for domain in sorted(domains, key=lambda domain: domain.name):
            if domain.name in self._counters:
                raise MeterError(f"meter domain {domain.name!r}: two meters have a domain of this name")
            alike = pools[domain.engines]
            self._counters[domain.name] = counter = Counter(domain, len(alike), len(self._counters))
            alike.append(counter)
        if len(self._counters) > MAX_SOURCES:
            raise MeterError(f"meters: {len(self._counters)} domains, a receipt holds at most {MAX_SOURCES}")
        present = Present((0,) * len(self._counters))
        self._serves, self._extras, self._moment = present.serves, present.extras, present.moment
        self._pools = {engines: Pool(counters, present) for engines, counters in pools.items()}
        self._draw = draw
        self._epoch = draw()
        self._unsealed: dict[bytes, Energy] = {}
        self._ended: deque[tuple[bytes, dict[str, Row]]] = deque(maxlen=KEPT_EPOCHS)

    def __contains__(self, serve_id: bytes) -> bool:
        return serve_id in self._serves

    def __len__(self) -> int:
        """Serves active now."""
        return len(self._serves)

    def cover(self, recipe_id: str) -> Cover:
        """What counts this engine's work. No pool where nothing does."""
        return Cover([pool for engines, pool in self._pools.items() if engines is None or recipe_id in engines])

    def began(self, serve_id: bytes) -> tuple[int, Cover] | None:
        """When an active serve began, and what counts it."""
        serve = self._serves.get(serve_id)
        return None if serve is None else (serve[0], serve[1].cover)

    def tick(self, readings: Iterable[Reading]) -> None:
        """Take one reading of every domain. A domain that is not among them could not be read."""
        seen = {reading.domain: reading for reading in readings}
        resets: list[tuple[Counter, Reading, int]] = []
        for name, counter in self._counters.items():
            reading = seen.get(name)
            uj, fault = (None, "no-reading") if reading is None else _judge(reading)
            if reading is None or uj is None:
                counter.fault = fault
            elif counter.row is None:
                counter.row = Row(uj, uj)
                counter.seen(reading.at_ns)
            elif reading.reset or uj < counter.row.last_uj:
                resets.append((counter, reading, uj))
            else:
                pool = self._pools[counter.domain.engines]
                gap = reading.gap or counter.fault is not None
                counter.advance(counter.row, uj, reading.at_ns, pool, gap=gap)
        if resets:
            # After the readings that continue their counters: what those counted still belongs to the old epoch.
            self._end_epoch()
            for counter, reading, uj in resets:
                counter.row = Row(uj, uj)
                counter.seen(reading.at_ns)
        self._moment.over()
        for pool in self._pools.values():
            pool.turn()

    def begin(self, serve_id: bytes, cover: Cover, at_ns: int, between: bool = False) -> bool:
        """Count a serve as active from the latest tick on. `at_ns` is for its span alone. `between` two ticks, the
        latest of which is no older than the cover's `slack_ns`: False where it was no good, and then nothing has
        begun."""
        if serve_id in self._serves or serve_id in self._unsealed:
            raise MeterError(f"serve {serve_id.hex()}: began twice")
        moment = self._moment
        beginning = moment.beginnings.get(cover) if between else None
        if beginning is not None:
            for pool in cover.pools:  # `join`, for one who begins where another did
                pool.sharers += 1
                pool.crowd_new = pool.crowd_between = True
        elif between and any(pool.fault is not None for pool in cover.pools):
            return False
        else:
            beginning = Beginning(cover, [pool.join(between) for pool in cover.pools])
            if between and not any(start.guarded for start in beginning.starts):
                moment.beginnings[cover] = beginning
        if moment.told:
            moment.told.clear()
        self._serves[serve_id] = at_ns, beginning
        return True

    def guard_ns(self, serve_id: bytes) -> int:
        """For how long after its end this serve must stay alone for its figure to be called measured; 0 where that is
        out of reach already. A counter shows what was spent up to one resolution late."""
        serve = self._serves.get(serve_id)
        if serve is None:
            return 0
        guard_ns = 0
        beginning = serve[1]
        for pool, start in zip(beginning.cover.pools, beginning.starts, strict=True):
            if not start.guarded or pool.modelled or pool.sharers > 1 or pool.peak_since(start.crowd) > 1:
                return 0
            guard_ns = max(guard_ns, pool.resolution_ns)
        return guard_ns

    def end_between(self, serve_id: bytes, at_ns: int, age_ns: float = -1, keep: bool = True) -> Energy | None:
        """`end` between two ticks, the latest of which is `age_ns` old. None where that is too old, where it was no
        good, or where a guard interval is to be waited for, and then nothing has ended."""
        serve = self._serves.get(serve_id)
        if serve is None:
            return None
        began_ns, beginning = serve
        cover, span_ns = beginning.cover, at_ns - began_ns
        if age_ns > cover.slack_ns:
            return None
        if keep and span_ns >= cover.twice_ns:
            told = self._moment.told.get((beginning, self._extras.get(serve_id)))
            if told is not None:  # another held as much who ended at this reading: the span alone is its own
                del self._serves[serve_id]
                if self._extras:
                    self._extras.pop(serve_id, None)
                for pool in cover.pools:  # `leave`: the crowd was noted when the other one did
                    pool.sharers -= 1
                    if not pool.sharers:
                        pool.rest(at_ns)
                self._unsealed[serve_id] = energy = told.beside("span_ns", span_ns)
                return energy
        for pool, start in zip(cover.pools, beginning.starts, strict=True):
            if pool.fault is not None or (start.guarded and keep and self.guard_ns(serve_id)):
                return None
        return self._end(serve_id, at_ns, keep, False, True)

    def end(self, serve_id: bytes, at_ns: int, *, keep: bool = True, guarded: bool = True) -> Energy:
        """End a serve at the latest tick and give its figure, held as open until `sealed`. Without `keep` there is none
        and its share is unattributed. `guarded`: the time of `guard_ns` passed with nobody else coming."""
        return self._end(serve_id, at_ns, keep, guarded, False)

    def _end(self, serve_id: bytes, at_ns: int, keep: bool, guarded: bool, between: bool) -> Energy:
        began_ns, beginning = self._serves.pop(serve_id)
        cover = beginning.cover
        span_ns = at_ns - began_ns if at_ns > began_ns else 0
        extra = self._extras.pop(serve_id, None)
        for pool in cover.pools:
            pool.leave(at_ns, between)
        energy = figure(beginning, extra, span_ns, self._epoch, guarded) if keep else absent("abandoned", span_ns)
        if energy.uj is not None:
            self._unsealed[serve_id] = energy
            if not guarded and energy.covered_ns is None and not any(pool.crowd_new for pool in cover.pools):
                self._moment.told[beginning, extra] = energy
            return energy
        for pool, start in zip(cover.pools, beginning.starts, strict=True):
            for counter in pool.counters:
                if counter.row is not None:
                    counter.row.unattributed_uj += counter.held_uj(start, extra)
        return energy

    def sealed(self, serve_id: bytes) -> None:
        """The receipt with this serve's figure exists: from now on the receipt holds it. The one thing that may be said
        from any thread at any time: it takes one step."""
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

    def _rows(self) -> dict[str, Row]:
        return {name: counter.row for name, counter in self._counters.items() if counter.row is not None}

    def _epochs(self) -> Iterator[tuple[bytes, dict[str, Row]]]:
        yield self._epoch, self._rows()
        yield from self._ended

    def _totals(self, epoch: bytes, rows: dict[str, Row]) -> EpochTotals:
        held = dict.fromkeys(rows, 0)
        for energy in list(self._unsealed.values()):  # of which some may be sealed meanwhile
            if energy.epoch == epoch:
                for source in energy.sources:
                    held[source.domain] += source.uj
        if epoch == self._epoch:
            for pool in self._pools.values():
                for counter, uj in zip(pool.counters, pool.all_held_uj(), strict=True):
                    if counter.row is not None:
                        held[counter.domain.name] += uj
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
        for pool in self._pools.values():
            for counter, uj in zip(pool.counters, pool.all_held_uj(), strict=True):
                if counter.row is not None:
                    counter.row.unattributed_uj += uj
        self._end_all()
        self._ended.append((self._epoch, self._rows()))
        for counter in self._counters.values():
            if counter.row is not None:
                counter.row = Row(counter.row.last_uj, counter.row.last_uj)
        self._epoch = self._draw()

    def _end_all(self) -> None:
        """Those who are active hold nothing in the new epoch, and will have no figure."""
        over: dict[Cover, Beginning] = {}
        for serve_id, (began_ns, beginning) in self._serves.items():
            cover = beginning.cover
            if cover not in over:
                over[cover] = Beginning(cover, [Start(pool, fault="epoch-ended") for pool in cover.pools])
            self._serves[serve_id] = began_ns, over[cover]
        self._extras.clear()


def _judge(reading: Reading) -> tuple[int | None, str]:
    """The count, or the reason why there is none."""
    if reading.uj is None:
        return None, reading.reason if is_reason(reading.reason) and reading.reason else "meter-unreadable"
    if not 0 <= reading.uj <= MAX_COUNTER_UJ:
        return None, "counter-out-of-range"
    return reading.uj, ""
