"""Where an engine puts its tokens and a handler takes text: the delivery of one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mesh.gateway.text import Released, TextStream


class TokenStream:
    """The steward's `Delivery` for one answer. Tokens go in as the engine makes them and never wait; what a slow client
    has not taken yet is joined, so the memory is that of the text.

    A streamed answer has a writer that calls `take` and `wrote` in turn, and `settle` waits for it. A plain answer has
    none: its text goes out whole once everything is sealed. Whoever finds the client gone calls `abandon`.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str], *, streamed: bool) -> None:
        self.cancelled = asyncio.Event()
        self.cut_by: str | None = None
        self.settled = False
        self._piece = piece
        self._text = TextStream(stops)
        self._streamed = streamed
        self._parts: list[str] = []
        self._ended = False
        self._abandoned = False
        self._changed = asyncio.Event()
        self._all_written = asyncio.Event()
        self._wrote = 0
        self._taken = 0

    @property
    def incomplete(self) -> bool:
        """Whether the output ended inside a character."""
        return self._text.incomplete

    def put(self, token: int) -> None:
        self._add(self._text.push(self._piece(token)))

    async def settle(self) -> int | None:
        self._add(self._text.finish())
        self.settled = True
        self.close()
        if self._streamed:
            await self._all_written.wait()
            return self._wrote
        return 0 if self.cancelled.is_set() else self._text.delivered

    def close(self) -> None:
        """No more text will come, whether or not there ever was any."""
        self._ended = True
        self._changed.set()

    def abandon(self) -> None:
        """The client is gone: the engine is told, and nobody waits for a writer any longer."""
        self._abandoned = True
        self.cut("client-gone")
        self._all_written.set()

    def cut(self, by: str) -> None:
        """Call the engine off; who did so first is what the receipt says."""
        if not self.cancelled.is_set():
            self.cut_by = by
            self.cancelled.set()

    def whole(self) -> str:
        """All text of a plain answer."""
        return "".join(self._parts)

    async def take(self, timeout_s: float) -> str | None:
        """The text that came since the last call, waiting for some; empty where `timeout_s` pass without any; None at
        the end."""
        if not self._parts and not self._ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return ""
        if not self._parts:
            self._all_written.set()
            return None
        text = "".join(self._parts)
        self._parts.clear()
        self._taken = self._text.delivered
        return text

    def wrote(self) -> None:
        """What was last taken is on its way to the client."""
        self._wrote = self._taken

    def _add(self, released: Released) -> None:
        if released.text and not self._abandoned:
            self._parts.append(released.text)
            self._changed.set()
