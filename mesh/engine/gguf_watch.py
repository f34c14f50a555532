"""Whether a child still does what it owes. One that hangs keeps its pipe open, and nothing else would tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# What a child can owe a sign of: each is worked on by a thread of its own there.
SERVES: Final = "serves"
TEXTS: Final = "texts"
PING: Final = "ping"

_LOOKS: Final = 8  # in the time that a child may say nothing


class Watch:
    """Counts looks and not seconds, so that a gateway that was itself stopped takes nobody's silence for a fault.

    `hung` is called once, with a sentence, when something owed had no sign for `limit_s` seconds; `ping` where nothing
    is owed: it asks the child for a sign. Both run on the event loop, neither after `stop`.
    """

    def __init__(self, limit_s: float, *, hung: Callable[[str], None], ping: Callable[[], None]) -> None:
        self.limit_s = limit_s
        self._hung, self._ping = hung, ping
        self._silent: dict[str, int] = {}  # looks since the last sign of what is owed
        self._next: asyncio.TimerHandle | None = None

    def start(self, limit_s: float | None = None) -> None:
        """Begin to look, or go on with another limit."""
        self.stop()
        self.limit_s = self.limit_s if limit_s is None else limit_s
        self._next = asyncio.get_running_loop().call_later(self.limit_s / _LOOKS, self._look)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def owe(self, what: str) -> None:
        """The child has something to do, beside what it had already."""
        self._silent.setdefault(what, 0)

    def sign(self, what: str) -> None:
        """It said something of it."""
        if what in self._silent:
            self._silent[what] = 0

    def settle(self, what: str) -> None:
        """It has none of it left to do."""
        self._silent.pop(what, None)

    def _look(self) -> None:
        for what in self._silent:
            self._silent[what] += 1
            if self._silent[what] > _LOOKS:
                self._next = None
                self._hung(f"said nothing of its {what} for {self.limit_s:g} s and was killed")
                return
        if not self._silent:
            self.owe(PING)
            self._ping()
        self.start()
