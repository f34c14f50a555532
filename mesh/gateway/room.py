"""Room for serves in front of one engine: so many run, so many wait, the rest are told when to come back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from mesh.errors import Overloaded

_RETRY_MAX_S = 60
_WEIGHT = 0.2  # of the newest serve in the running mean


class Room:
    """`slots` serves run at once, `queue` more wait their turn in order, for at most `wait_s` seconds."""

    def __init__(self, slots: int, queue: int, wait_s: float, clock: Callable[[], float]) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._count = slots
        self._queue = queue
        self._wait_s = wait_s
        self._clock = clock
        self._mean_s = 1.0
        self.waiting = 0

    @property
    def full(self) -> bool:
        return self._slots.locked() and self.waiting >= self._queue

    @property
    def free(self) -> bool:
        """Whether `enter` would take a slot without waiting."""
        return not self._slots.locked()

    async def enter(self) -> bool:
        """Take a slot; True where it had to be waited for. Raises Overloaded where there is no place to wait or it took
        too long."""
        if self.full:
            raise self.overloaded()
        if not self._slots.locked():
            await self._slots.acquire()
            return False
        self.waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise self.overloaded() from None
        finally:
            self.waiting -= 1
        return True

    def leave(self, started: float) -> None:
        """Give the slot back. `started` is the clock's reading when it was taken."""
        self._mean_s += _WEIGHT * (self._clock() - started - self._mean_s)
        self._slots.release()

    def overloaded(self) -> Overloaded:
        retry_s = math.ceil(self._mean_s * (self.waiting + 1) / self._count)
        return Overloaded(
            f"all {self._count} slots are taken and {self.waiting} requests wait",
            retry_after_s=min(max(retry_s, 1), _RETRY_MAX_S),
        )
