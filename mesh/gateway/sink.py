"""Where an engine puts its tokens and a handler takes text: the delivery of one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mesh.engine.alarm import Alarm
from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Scores, pieces_of
from mesh.gateway.logprobs import Entry, ScoreLine
from mesh.gateway.text import Released, TextStream


class Part(NamedTuple):
    """Text in its order, with the scores that belong to it."""

    text: str
    entries: list[Entry]


class TokenStream:
    """The steward's `Delivery` for one answer. Tokens go in as the engine makes them and never wait; what a slow client
    has not taken yet is joined, so the memory is that of the text. `scores_wanted` is of how many of the likeliest ids
    the engine is asked for scores; None: none.

    A streamed answer has a writer that calls `take` and `wrote` in turn and `finished` once nothing is left to write,
    and `settle` waits for it. A plain answer has none: its text goes out whole once everything is sealed. Whoever finds
    the client gone calls `abandon`.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        stops: Sequence[str],
        *,
        streamed: bool,
        scores_wanted: int | None = None,
    ) -> None:
        self.cancelled = CallOff()
        self.cut_by: str | None = None
        self.settled = False
        self.scores_wanted = scores_wanted
        self.taken_whole = not streamed
        self._piece = piece
        self._text = TextStream(stops)
        self._line = None if scores_wanted is None else ScoreLine()
        self._streamed = streamed
        self._parts: list[str] = []
        self._entries: list[Entry] = []
        self._ended = False
        self._abandoned = False
        self._waiter: asyncio.Future[None] | None = None
        self._quiet = Alarm(self._wake) if streamed else None
        self._all_written = asyncio.Event()
        self._wrote = 0
        self._taken = 0

    @property
    def incomplete(self) -> bool:
        """Whether the output ended inside a character."""
        return self._text.incomplete

    def put(self, token: int, scores: Scores | None = None) -> None:
        piece = self._piece(token)
        if self._line is not None:
            self._line.push(token, piece, scores)
            self._add(self._text.push(piece), ended=self._text.stopped)
            return
        text = self._text.push(piece).text
        if text and not self._abandoned:
            self._parts.append(text)
            self._wake()

    def put_all(self, tokens: Sequence[int]) -> None:
        pieces = pieces_of(self._piece, tokens)
        if self._line is not None or not self._text.plain:
            for token in tokens:
                self.put(token)
            return
        text = self._text.push_all(pieces).text
        if text and not self._abandoned:
            self._parts.append(text)
            self._wake()

    async def settle(self) -> int | None:
        self._add(self._text.finish(), ended=True)
        self.settled = True
        self.close()
        if self._streamed:
            await self._all_written.wait()
            return self._wrote
        return 0 if self.cancelled.is_set() else self._text.delivered

    def close(self) -> None:
        """No more text will come, whether or not there ever was any."""
        self._ended = True
        self._wake()
        if self._quiet is not None:
            self._quiet.close()

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

    def whole(self) -> Part:
        """All of a plain answer."""
        return Part("".join(self._parts), self._entries)

    async def take(self, timeout_s: float) -> Part | None:
        """What came since the last call, waiting for some; empty where `timeout_s` pass without any; None at the
        end."""
        if not self._parts and not self._ended:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            if self._quiet is not None:
                self._quiet.set(loop.time() + timeout_s)
            try:
                await self._waiter
            finally:
                self._waiter = None
            if not self._parts and not self._ended:
                return Part("", [])
        if not self._parts:
            return None
        part = Part("".join(self._parts), self._entries)
        self._parts.clear()
        self._entries = []
        self._taken = self._text.delivered
        return part

    def wrote(self) -> None:
        """What was last taken is on its way to the client."""
        self._wrote = self._taken

    def finished(self) -> None:
        """All of it is."""
        self._all_written.set()

    def _add(self, released: Released, *, ended: bool) -> None:
        entries = [] if self._line is None else self._line.release(self._text.released, ended=ended)
        if (released.text or entries) and not self._abandoned:
            self._parts.append(released.text)
            self._entries += entries
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
