"""How often a counter moves, seen and not believed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

STILL_NS = 2 * 10**9  # whatever lives spends something; a counter that stands for so long counts nothing
ENOUGH = 8  # moves of one counter


def observed_intervals(
    looks: Sequence[Callable[[], int | None]],
    now_ns: Callable[[], int],
    budget_ns: int,
    pause: Callable[[], object] = lambda: None,
) -> list[int | None]:
    """The median time between two moves of each counter, all watched at once for at most `budget_ns`, with a `pause`
    between two looks. None for a counter that was not seen to move twice."""
    values = [look() for look in looks]
    moves: list[list[int]] = [[] for _ in looks]
    end_ns = now_ns() + budget_ns
    while now_ns() < end_ns and any(len(seen) <= ENOUGH for seen in moves):
        for place, look in enumerate(looks):
            value = look()
            if value is not None and value != values[place]:
                values[place] = value
                moves[place].append(now_ns())
        pause()
    return [_interval(seen) for seen in moves]


def _interval(moves: list[int]) -> int | None:
    steps = [after - before for before, after in itertools.pairwise(moves)]
    return max(1, int(statistics.median(steps))) if steps else None
