"""How two sides are compared: rounds in turn within one run, medians, and the spread beside them.

Only figures of one run are compared. A machine that others use slows both sides of a round alike, so the sides take
turns, and who goes first alternates.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

Round = Callable[[], float]
"""One round of one side; returns its figure in the unit of the row."""


class PeerMissing(Exception):
    """The peer cannot be had on this machine. The message is for the table: no paths, no hosts."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on ours / peer, and the side of it that is good."""

    sign: Literal["<=", ">="]
    bound: float

    def __str__(self) -> str:
        return f"{self.sign} {self.bound}"

    def met(self, ratio: float) -> bool:
        return ratio <= self.bound if self.sign == "<=" else ratio >= self.bound


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. `cpu_calls` is calls in one CPU round, `serves` those of each caller in one round."""

    rounds: int
    cpu_calls: int
    callers: int
    serves: int
    file_bytes: int


FULL = Plan(rounds=15, cpu_calls=1500, callers=64, serves=20, file_bytes=512 * 1024 * 1024)
QUICK = Plan(rounds=3, cpu_calls=64, callers=64, serves=2, file_bytes=8 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Sides:
    """`peer` is the reason where there is no peer here. `peer_version` says which one it is."""

    ours: Round
    peer: Round | PeerMissing
    peer_version: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row to measure. `sides` sets both up, yields them, and takes them down. `goal` is None where nobody has set
    one. `limit` is where the rest of it goes, told where the goal is missed."""

    name: str
    unit: str
    ours: str
    peer: str
    goal: Goal | None
    sides: Callable[[Plan], AbstractContextManager[Sides]]
    rounds: int | None = None  # at most, where a round takes long
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """`ours` and `peer` are medians over the rounds in `unit`, `ratio` is ours / peer, the spreads are smallest and
    largest; `ratio_spread` is of the ratios within one round. What was not measured is None, and `reason` says why."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str | None
    met: bool | None
    unit: str
    ours_is: str
    peer_is: str
    rounds: int
    ours_spread: tuple[float, float]
    peer_spread: tuple[float, float] | None
    ratio_spread: tuple[float, float] | None
    peer_version: str | None
    reason: str | None
    limit: str | None

    def to_map(self) -> dict[str, Any]:
        return asdict(self)


def measure(comparison: Comparison, plan: Plan) -> Row:
    rounds = min(plan.rounds, comparison.rounds or plan.rounds)
    with comparison.sides(plan) as sides:
        if isinstance(sides.peer, PeerMissing):
            _warm(sides.ours)
            ours = [_round(sides.ours) for _ in range(rounds)]
            return row_of(comparison, ours, None, reason=str(sides.peer))
        ours, peer = take_turns(sides.ours, sides.peer, rounds)
        return row_of(comparison, ours, peer, peer_version=sides.peer_version)


def take_turns(ours: Round, peer: Round, rounds: int) -> tuple[list[float], list[float]]:
    """The figures of both sides, after a round of each that does not count."""
    _warm(ours, peer)
    figures: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for side in order:
            figures[side].append(_round((ours, peer)[side]))
    return figures


def row_of(
    comparison: Comparison,
    ours: Sequence[float],
    peer: Sequence[float] | None,
    *,
    peer_version: str | None = None,
    reason: str | None = None,
) -> Row:
    ratio = None if peer is None else statistics.median(ours) / statistics.median(peer)
    # from the ratio as measured: rounding must not carry a figure over its bound
    met = None if ratio is None or comparison.goal is None else comparison.goal.met(ratio)
    return Row(
        name=comparison.name,
        ours=_short(statistics.median(ours)),
        peer=None if peer is None else _short(statistics.median(peer)),
        ratio=None if ratio is None else _short(ratio),
        goal=None if comparison.goal is None else str(comparison.goal),
        met=met,
        unit=comparison.unit,
        ours_is=comparison.ours,
        peer_is=comparison.peer,
        rounds=len(ours),
        ours_spread=_spread(ours),
        peer_spread=None if peer is None else _spread(peer),
        ratio_spread=None if peer is None else _spread([a / b for a, b in zip(ours, peer, strict=True)]),
        peer_version=peer_version,
        reason=reason,
        limit=comparison.limit if met is False else None,
    )


def cpu_us(call: Callable[[int], object], calls: int) -> float:
    """Microseconds of this process's CPU time for one call; `call` is given 0, 1, 2, ..."""
    start = time.process_time_ns()
    for number in range(calls):
        call(number)
    return (time.process_time_ns() - start) / calls / 1000


def process_cpu_ns(pid: int) -> int:
    """CPU time that another process has used so far, all its threads together, in nanoseconds. Linux only: the number
    of that clock is made from the process's as clock_getcpuclockid(3) does it."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def _warm(*sides: Round) -> None:
    for side in sides:
        _round(side)


def _round(side: Round) -> float:
    gc.collect()  # the garbage of the other side's round is not this one's to collect
    return side()


def _spread(figures: Sequence[float]) -> tuple[float, float]:
    return _short(min(figures)), _short(max(figures))


def _short(figure: float) -> float:
    """To four significant digits: more would be noise."""
    return float(f"{figure:.4g}")
