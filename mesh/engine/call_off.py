"""The word that nobody wants more of a serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class CallOff(asyncio.Event):
    """Set once nobody wants more. What waits for it without a task of its own puts at `heard` what is to be called
    then, and takes it away again: one thing at a time, as a serve does one at a time."""

    heard: Callable[[], None] | None = None

    def set(self) -> None:
        super().set()
        if self.heard is not None:
            self.heard()
