"""Waiting for the meter thread's next reading, many together."""

from __future__ import annotations

import asyncio


class TooLate(Exception):
    """No reading came in time, for those who wait for it together."""


class Look:
    """Those of one loop who wait for the next reading together: one question and one timer for all of them. To whoever
    answers it is a future."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self.loop = loop
        self._over = False
        self._waiters: list[asyncio.Future[bool]] = []
        self._timer = loop.call_later(patience_s, self._end, False)

    def wait(self) -> asyncio.Future[bool]:
        """Whether it came in time."""
        waiter: asyncio.Future[bool] = self.loop.create_future()
        if self._over:  # answered as it was asked
            waiter.set_result(True)
        else:
            self._waiters.append(waiter)
        return waiter

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def done(self) -> bool:
        return self._over

    def set_result(self, _: object) -> None:
        self._timer.cancel()
        self._end(True)

    def _end(self, taken: bool) -> None:
        self._over = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(taken)
