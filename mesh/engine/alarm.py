"""A timer that is moved on with every token and goes off almost never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` when the loop's clock reads what it was last set to. To set it again costs next to nothing, where a
    timer each time would cost more than a token: the one there is looks again when it goes off. Whoever waits no more
    leaves it as it is, and has a `ring` that does nothing then. `close`, after which it is not set again, leaves no
    timer behind, nor `ring`: that is mostly a method of whoever holds the alarm."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring: Callable[[], None] | None = ring
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_s: float) -> None:
        self._due_s = due_s
        if self._timer is not None and self._timer.when() > due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ring = None

    def _look(self) -> None:
        self._timer = None
        if self._due_s > self._loop.time():
            self.set(self._due_s)
        elif self._ring is not None:
            self._ring()
