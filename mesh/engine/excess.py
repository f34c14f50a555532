"""An engine's processes looked at while they live, and ended where they take more than they may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 1.0

Excess = Callable[[int], str | None]
"""Given the id of an engine's process: why it has to end, None where it may go on. It reads files, in a thread."""


class ExcessWatch:
    """Asks `excess` every second. `end` hears why, once, on the event loop; not after `stop`."""

    def __init__(self, excess: Excess | None, end: Callable[[str], None]) -> None:
        self._excess, self._end = excess, end
        self._looking: asyncio.Task[None] | None = None

    def start(self, pid: int) -> None:
        self.stop()
        if self._excess is not None:
            self._looking = asyncio.create_task(self._look(self._excess, pid))

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, excess: Excess, pid: int) -> None:
        while True:
            why = await asyncio.to_thread(excess, pid)
            if why is not None:
                self._end(why)
                return
            await asyncio.sleep(LOOK_S)
