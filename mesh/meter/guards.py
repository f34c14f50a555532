"""What was asked of the meter thread, answered from the reading just taken."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.meter.allocation import Allocation
from mesh.meter.asking import Answer, Ask
from mesh.meter.figure import absent


class Guards:
    """`waiting`: the ends that wait for their guard interval, in which nobody else may come if what they are given is
    to be called measured."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self.waiting: list[Ask] = []

    def pause_s(self, now_ns: int) -> float | None:
        """Until the first of the intervals is over, None where nobody waits for one."""
        return min([(ask.guard_until_ns - now_ns) / 1e9 for ask in self.waiting], default=None)

    def settle(self, asks: Iterable[Ask], now_ns: int) -> list[Answer]:
        """Apply what was asked, in the order it was asked, to the reading that was taken at `now_ns`."""
        allocation = self._allocation
        done: list[Answer] = []
        # Before anything new begins: whoever begins at this reading came after the guard interval.
        waiting = []
        for ask in self.waiting:
            if now_ns >= ask.guard_until_ns:
                self._finish(ask, done, guarded=True)
            else:
                waiting.append(ask)
        for ask in asks:
            if ask.what == "look":
                if ask.future is not None:
                    done.append((ask.future, None))
            elif ask.what == "begin":
                if ask.serve_id not in allocation and ask.cover is not None:
                    allocation.begin(ask.serve_id, ask.cover, ask.at_ns)
                if ask.future is not None:
                    done.append((ask.future, None))
            elif ask.what == "discard":
                allocation.discard(ask.serve_id, ask.at_ns)
            else:
                ask.guard_until_ns = now_ns + (allocation.guard_ns(ask.serve_id) if ask.keep else 0)
                waiting.append(ask)
        self.waiting = []
        for ask in waiting:
            # Nobody waits for a claim that cannot be made any more.
            if now_ns < ask.guard_until_ns and allocation.guard_ns(ask.serve_id):
                self.waiting.append(ask)
            else:
                self._finish(ask, done, guarded=False)
        return done

    def _finish(self, ask: Ask, done: list[Answer], *, guarded: bool) -> None:
        if ask.serve_id in self._allocation:
            energy = self._allocation.end(ask.serve_id, ask.at_ns, keep=ask.keep, guarded=guarded)
        else:
            energy = absent("abandoned")
        if ask.future is not None:
            done.append((ask.future, energy))
