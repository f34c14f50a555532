"""Sums over receipts, for charts: by model, by caller and over time. What is not known is left out, and never 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mesh.gateway.recent import Row
from mesh.schema.view import view

POINTS: Final = 120  # of a series
MAX_GROUPS: Final = 100
NS_PER_S: Final = 10**9
_UJ_PER_J: Final = 10**6


@dataclass(slots=True)
class Group:
    """The serves of one name. `uj` is by basis; `token_uj` and `tokens` are of the serves that have a figure and
    accepted tokens, whose quotient is the cost of a token."""

    name: str
    serves: int = 0
    finishes: Counter[str] = field(default_factory=Counter)
    bases: Counter[str] = field(default_factory=Counter)
    uj: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    token_uj: int = 0
    tokens: int = 0

    def add(self, row: Row) -> None:
        self.serves += 1
        self.finishes[row.finish] += 1
        self.bases[row.basis] += 1
        for name, count in (("tokens_in", row.tokens_in), ("tokens_out", row.tokens_out)):
            if count is not None:
                self.counts[name] += count
        if row.uj is not None:
            self.uj[row.basis] += row.uj
            if row.tokens_accepted:
                self.token_uj += row.uj
                self.tokens += row.tokens_accepted

    def view(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name, "serves": self.serves, "finishes": self.finishes}
        told |= {"bases": self.bases, "uj": self.uj, **self.counts}
        if self.tokens:
            told |= {"token_uj": self.token_uj, "tokens": self.tokens}
        return {name: view(value) for name, value in told.items()}


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> list[Group]:
    """The most energy first, then the most serves."""
    groups: dict[str, Group] = {}
    for row in rows:
        name = key(row)
        group = groups.get(name)
        if group is None:
            group = groups[name] = Group(name)
        group.add(row)
    return sorted(groups.values(), key=lambda group: (-sum(group.uj.values()), -group.serves, group.name))


@dataclass(slots=True)
class _Point:
    tokens: float = 0.0
    counts: int = 0
    uncounted: int = 0
    uj: float = 0.0
    figures: int = 0
    without: int = 0


def series(rows: Sequence[Row], from_ns: int, step_ns: int) -> list[dict[str, Any]]:
    """`POINTS` spans of `step_ns`: in each the tokens a second and the watts that its serves had, if a serve spends
    evenly from its beginning to its end. Either is left out where serves ran and none has a count or a figure, and
    watts everywhere if no receipt has one; `without_count` and `without_figure` count the serves that it says nothing
    of."""
    points = [_Point() for _ in range(POINTS)]
    end_ns = from_ns + POINTS * step_ns
    for row in rows:
        # a clock that was set back may have a serve end before it began
        began_ns = min(row.started_ns, row.ended_ns - 1)
        first, last = max(began_ns, from_ns), min(row.ended_ns, end_ns)
        span_ns = row.ended_ns - began_ns
        for at in range(max(0, (first - from_ns) // step_ns), min(POINTS - 1, (last - 1 - from_ns) // step_ns) + 1):
            point, start_ns = points[at], from_ns + at * step_ns
            part = (min(last, start_ns + step_ns) - max(first, start_ns)) / span_ns
            if row.tokens_out is None:
                point.uncounted += 1
            else:
                point.counts += 1
                point.tokens += row.tokens_out * part
            if row.uj is None:
                point.without += 1
            else:
                point.figures += 1
                point.uj += row.uj * part
    metered = any(point.figures for point in points)
    step_s = step_ns / NS_PER_S
    told = []
    for point in points:
        one: dict[str, Any] = {}
        if point.counts or not point.uncounted:
            one["tokens_per_s"] = round(point.tokens / step_s, 6)
        if point.uncounted:
            one["without_count"] = point.uncounted
        if metered and (point.figures or not point.without):
            one["watts"] = round(point.uj / _UJ_PER_J / step_s, 6)
        if point.without:
            one["without_figure"] = point.without
        told.append(one)
    return told
