"""The figure of a serve that ended: what its shares amount to, and how much may be claimed of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.meter.sharing import Share
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
    return Energy.of(basis="absent", sources=[], reason=reason, span_ns=span_ns)


def _basis(share: Share, span_ns: int, guarded: bool) -> tuple[int, str | None]:
    """Its place among the bases, and the reason why there is no figure."""
    counter, opened = share.counter, share.opened
    row = counter.row
    if share.fault is not None or row is None:
        return _ABSENT, share.fault or "no-reading"
    if span_ns < counter.twice_ns or counter.last_ns - opened.ns < counter.twice_ns:
        return _UNRESOLVED, "span-under-resolution"
    if row.last_uj == opened.uj:
        return _UNRESOLVED, "counter-still"
    if counter.domain.modelled:
        return _MODELLED, None
    alone = guarded and share.guarded and share.peak == 1 and counter.gap_ns == opened.gap_ns
    return (_MEASURED if alone else _ALLOCATED), None


def figure(shares: Sequence[Share], span_ns: int, epoch: bytes, guarded: bool) -> Energy:
    """The weakest basis among the domains; of several as weak, the first one's reason."""
    if not shares:
        return absent("no-meter", span_ns)
    weakest, reason, peak, gap_ns, window_uj = -1, None, 1, 0, 0
    for share in shares:
        counter, opened = share.counter, share.opened
        basis, why = _basis(share, span_ns, guarded)
        if basis > weakest:
            weakest, reason = basis, why
        if (row := counter.row) is not None:
            window_uj += row.last_uj - opened.uj
        if (missed_ns := counter.gap_ns - opened.gap_ns) > gap_ns:
            gap_ns = missed_ns
        if counter.crowds != share.crowd and (most := share.peak) > peak:
            peak = most
    told: dict[str, Any] = {"span_ns": span_ns}
    if reason is not None:
        if weakest == _ABSENT:
            return absent(reason, span_ns)
        told["reason"] = reason
    else:
        told["epoch"] = epoch
        told["sources"] = sources = [share.counter.source_of(share.held_uj) for share in shares]
        told["uj"] = sources[0].uj if len(sources) == 1 else sum(source.uj for source in sources)
    if peak > 1 or weakest == _ALLOCATED:
        told["rule"], told["window_uj"], told["peak_sharers"] = RULE, window_uj, peak
    if gap_ns:
        told["covered_ns"] = max(0, span_ns - gap_ns)
    # Names were checked when the domain was met, and no sum of counters exceeds what a receipt can hold.
    return _BLANK[weakest].changed(**told)
