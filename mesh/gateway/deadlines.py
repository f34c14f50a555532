"""When serves are called off: one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mesh.gateway.choices import Serve


class Deadlines:
    """Tells serves that are not over in time, by the seconds of `clock`. A timer for each would be made and thrown away
    with every answer. The one there is goes off when the first of them is due; that one is mostly over by then, and it
    is set to the next."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[Serve, float] = {}
        self._next = 0.0  # when the timer goes off; that and what is due are in the loop's seconds
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is left that would go off."""
        return self._timer is None

    def add(self, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        due = self._due[serve] = loop.time() + serve.deadline - self._clock()
        if self._timer is None or due < self._next:
            self._set(loop, due)

    def remove(self, serve: Serve) -> None:
        """It is over."""
        self._due.pop(serve, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.close()
        self._next = due
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for serve in [serve for serve, due in self._due.items() if due <= now]:
            again_s = serve.late()
            if again_s is None:
                self.remove(serve)
            else:
                self._due[serve] = now + again_s
        if self._due:
            self._set(loop, min(self._due.values()))
