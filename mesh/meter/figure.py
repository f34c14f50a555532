"""The figure of a serve that ended: what its shares amount to, and how much may be claimed of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.meter.sharing import Share
from mesh.schema.energy import BASES, Energy

RULE = "equal/1"
_MEASURED, _ALLOCATED, _MODELLED, _UNRESOLVED, _ABSENT = range(len(BASES))


def absent(reason: str, span_ns: int | None = None) -> Energy:
    """No figure, and why."""
    return Energy.of(basis="absent", sources=[], reason=reason, span_ns=span_ns)


def _basis(share: Share, span_ns: int, guarded: bool) -> tuple[int, str | None]:
    """Its place among the bases, and the reason why there is no figure."""
    counter = share.counter
    if share.fault is not None or counter.row is None:
        return _ABSENT, share.fault or "no-reading"
    twice_ns = 2 * counter.domain.resolution_ns
    if span_ns < twice_ns or counter.last_ns - share.opened_ns < twice_ns:
        return _UNRESOLVED, "span-under-resolution"
    if counter.row.last_uj == share.opened_uj:
        return _UNRESOLVED, "counter-still"
    if counter.domain.modelled:
        return _MODELLED, None
    alone = guarded and share.guarded and share.peak == 1 and counter.gap_ns == share.opened_gap_ns
    return (_MEASURED if alone else _ALLOCATED), None


def figure(shares: Sequence[Share], span_ns: int, epoch: bytes, guarded: bool) -> Energy:
    """The weakest basis among the domains; of several as weak, the first one's reason."""
    if not shares:
        return absent("no-meter", span_ns)
    weakest, reason, peak, gap_ns, window_uj = -1, None, 1, 0, 0
    for share in shares:
        basis, why = _basis(share, span_ns, guarded)
        if basis > weakest:
            weakest, reason = basis, why
        counter = share.counter
        if counter.row is not None:
            window_uj += counter.row.last_uj - share.opened_uj
        if (missed_ns := counter.gap_ns - share.opened_gap_ns) > gap_ns:
            gap_ns = missed_ns
        if (most := share.peak) > peak:
            peak = most
    told: dict[str, Any]
    if reason is not None:
        told = {"basis": BASES[weakest], "sources": [], "span_ns": span_ns, "reason": reason}
        if weakest == _ABSENT:
            return Energy.from_map(told)
    else:
        told = {"basis": BASES[weakest], "span_ns": span_ns, "epoch": epoch}
        told["sources"] = [
            {
                "domain": share.counter.domain.name,
                "method": share.counter.domain.method,
                "uj": share.held_uj,
                "resolution_ns": share.counter.domain.resolution_ns,
            }
            for share in shares
        ]
        told["uj"] = sum(source["uj"] for source in told["sources"])
    if peak > 1 or weakest == _ALLOCATED:
        told |= {"rule": RULE, "window_uj": window_uj, "peak_sharers": peak}
    if gap_ns:
        told["covered_ns"] = max(0, span_ns - gap_ns)
    return Energy.from_map(told)
