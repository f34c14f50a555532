"""The figure of a serve that ended: what its shares amount to, and how much may be claimed of that."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mesh.meter.sharing import Beginning, Counter, Extra, Start
from mesh.schema.energy import BASES, WITHOUT_FIGURE, Energy, EnergySource

RULE = "equal/1"
_MEASURED, _ALLOCATED, _MODELLED, _UNRESOLVED, _ABSENT = range(len(BASES))

_SOURCE = EnergySource.of(domain="none", method="none", uj=0, resolution_ns=0)
_BLANK = [
    Energy.of(basis=basis, span_ns=0, sources=[_SOURCE], uj=0)
    if basis not in WITHOUT_FIGURE
    else Energy.of(basis=basis, span_ns=0, sources=[], reason="none")
    for basis in BASES
]


def absent(reason: str, span_ns: int | None = None) -> Energy:
    """No figure, and why."""
    blank = _absent(reason)
    return blank if span_ns is None else blank.lasting(span_ns)


@lru_cache(maxsize=64)
def _absent(reason: str) -> Energy:
    return Energy.of(basis="absent", sources=[], reason=reason)


def _basis(counter: Counter, start: Start, span_ns: int, alone: bool) -> tuple[int, str | None]:
    """Its place among the bases, and the reason why there is no figure."""
    row, where = counter.row, counter.place
    fault = counter.fault if start.faults is None else start.faults[where] or counter.fault
    if fault is not None or row is None:
        return _ABSENT, fault or "no-reading"
    twice_ns = 2 * counter.domain.resolution_ns
    if span_ns < twice_ns or counter.last_ns - start.ns[where] < twice_ns:
        return _UNRESOLVED, "span-under-resolution"
    if row.last_uj == start.uj[where]:
        return _UNRESOLVED, "counter-still"
    if counter.domain.modelled:
        return _MODELLED, None
    return (_MEASURED if alone and counter.gap_ns == start.gap_ns[where] else _ALLOCATED), None


def figure(beginning: Beginning, extra: Extra, span_ns: int, epoch: bytes, guarded: bool) -> Energy:
    """The weakest basis among the domains; of several as weak, the first one's reason."""
    cover, starts = beginning.cover, beginning.starts
    peak = 1
    for pool, start in zip(cover.pools, starts, strict=True):
        guarded = guarded and start.guarded
        if (most := pool.peak_since(start.crowd)) > peak:
            peak = most
    alone = guarded and peak == 1
    weakest, reason, gap_ns, window_uj, total_uj = -1, None, 0, 0, 0
    sources: list[EnergySource] = []
    for at, counter in cover.places:
        start = starts[at]
        basis, why = _basis(counter, start, span_ns, alone)
        if basis > weakest:
            weakest, reason = basis, why
        if (row := counter.row) is not None:
            window_uj += row.last_uj - start.uj[counter.place]
        if (missed_ns := counter.gap_ns - start.gap_ns[counter.place]) > gap_ns:
            gap_ns = missed_ns
        held_uj = counter.held_uj(start, extra)
        total_uj += held_uj
        sources.append(counter.source_of(held_uj))
    told: dict[str, Any] = {"span_ns": span_ns}
    if reason is None:
        told["epoch"], told["sources"], told["uj"] = epoch, sources, total_uj
    elif weakest == _ABSENT:
        return absent(reason, span_ns)
    else:
        told["reason"] = reason
    if peak > 1 or weakest == _ALLOCATED:
        told["rule"], told["window_uj"], told["peak_sharers"] = RULE, window_uj, peak
    if gap_ns:
        told["covered_ns"] = max(0, span_ns - gap_ns)
    # Names were checked when the domain was met, and no sum of counters exceeds what a receipt can hold.
    return _BLANK[weakest].changed(**told)
