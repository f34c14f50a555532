"""From the pieces of tokens to the text a client gets: whole characters only, and nothing from a stop string on.

The ids are the truth and are committed to elsewhere; text is made from them once, in order, by one `TextStream` per
answer. It also says how many of the ids the text released so far stands for, which is what "delivered" counts.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_Decoder = codecs.getincrementaldecoder("utf-8")


class Released(NamedTuple):
    """Text that may go out, and the number of ids whose bytes all lie in what has been released by its end."""

    text: str
    delivered: int


class TextStream:
    """The text of one answer. `stops` end it: what may be the beginning of one is held until that is decided, and the
    earliest one to be complete, byte by byte, wins, so the text does not depend on where tokens end.

    `stopped`: a stop string was met. `incomplete`: the output ended inside a character. `delivered`: ids whose bytes
    have all been released as characters; an id without bytes (a control token) is none of them. `released` is the
    number of bytes that are out as characters.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = [_Automaton(stop.encode()) for stop in stops]
        self._decoder = _Decoder("replace")
        self._held = bytearray()
        self._pushed = 0  # bytes of all pieces so far
        self._released = 0  # of these, handed to the decoder
        self._ends: deque[int] = deque()  # where in the bytes each undelivered id ends
        self.delivered = 0
        self.stopped = False
        self.incomplete = False

    @property
    def released(self) -> int:
        return self._released - len(self._decoder.getstate()[0])

    @property
    def plain(self) -> bool:
        """Whether nothing is held and nothing can be: no stop string ends the text, no character has begun."""
        return not self._stops and not self._ends

    def push(self, piece: bytes) -> Released:
        """Add the bytes of the next id. The text is empty while they complete no character or may begin a stop."""
        if self.stopped or not piece:
            return Released("", self.delivered)
        if self.plain:
            # whole characters go out as they come: nearly every token of nearly every answer
            try:
                return self._pass(piece, 1)
            except UnicodeDecodeError:
                pass
        self._pushed += len(piece)
        self._ends.append(self._pushed)
        self._held += piece
        cut = self._match(piece)
        if cut is not None:
            self.stopped = True
            text = self._release(cut) + self._decoder.decode(b"", final=True)
            self._held.clear()
            return Released(text, self.delivered)
        may_begin_a_stop = max((stop.state for stop in self._stops), default=0)
        return Released(self._release(len(self._held) - may_begin_a_stop), self.delivered)

    def push_all(self, pieces: Sequence[bytes]) -> Released:
        """Add the bytes of several ids, where the text is `plain`."""
        try:
            return self._pass(b"".join(pieces), sum(map(bool, pieces)))
        except UnicodeDecodeError:
            return Released("".join([self.push(piece).text for piece in pieces]), self.delivered)

    def _pass(self, data: bytes, ids: int) -> Released:
        text = data.decode()
        self._pushed += len(data)
        self._released = self._pushed
        self.delivered += ids
        return Released(text, self.delivered)

    def finish(self) -> Released:
        """The rest, once no id will come: what was held for a stop, and one U+FFFD where a character was cut."""
        if self.stopped or self.plain:
            return Released("", self.delivered)
        text = self._release(len(self._held))
        self.incomplete = bool(self._decoder.getstate()[0])
        return Released(text + self._decoder.decode(b"", final=True), self.delivered)

    def _match(self, piece: bytes) -> int | None:
        """How many held bytes come before a stop string that `piece` completes; None where it completes none."""
        if not self._stops:
            return None
        before = len(self._held) - len(piece)
        for i, byte in enumerate(piece, 1):
            # of two that are complete at one byte the longer begins earlier
            longest = max((len(stop.word) for stop in self._stops if stop.step(byte)), default=0)
            if longest:
                return before + i - longest
        return None

    def _release(self, size: int) -> str:
        text = self._decoder.decode(bytes(self._held[:size]))
        del self._held[:size]
        self._released += size
        whole = self.released
        while self._ends and self._ends[0] <= whole:
            self._ends.popleft()
            self.delivered += 1
        return text


class _Automaton:
    """Knuth-Morris-Pratt over bytes: `state` is how much of `word` the bytes so far end with. Not stepped on once the
    word is complete: the text ends there."""

    __slots__ = ("_fallback", "state", "word")

    def __init__(self, word: bytes) -> None:
        self.word = word
        self.state = 0
        self._fallback = [0] * (len(word) + 1)
        k = 0
        for i in range(1, len(word)):
            while k and word[i] != word[k]:
                k = self._fallback[k]
            k += word[i] == word[k]
            self._fallback[i + 1] = k

    def step(self, byte: int) -> bool:
        """Take one byte; True where it completes the word."""
        state = self.state
        while state and self.word[state] != byte:
            state = self._fallback[state]
        self.state = state + (self.word[state] == byte)
        return self.state == len(self.word)
