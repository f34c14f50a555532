"""Stop strings over the bytes of an output whose tokens end anywhere, inside a character or inside a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal


class StopMatcher:
    """Says at which token one of `stops` is complete in the output. Pieces are handed over in order; memory is
    bounded by the longest stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop.encode() for stop in stops if stop) if stops else ()
        self._reach = max(map(len, self._stops)) - 1 if self._stops else 0
        self._tail = b""
        self.matched = False

    def push(self, piece: bytes) -> bool:
        """Add a token's bytes. True once a stop string lies wholly in what was pushed, and from then on."""
        if self._stops and piece and not self.matched:
            seen = self._tail + piece
            self.matched = any(stop in seen for stop in self._stops)
            self._tail = seen[len(seen) - self._reach :] if self._reach < len(seen) else seen
        return self.matched


class Ending:
    """Follows one output, `made` ids of it so far, and says where it ends: where a stop string is complete in the bytes
    that `piece` gives of each id, at an id of `ends`, or after `max_tokens`."""

    def __init__(
        self, stops: Sequence[str], ends: Collection[int], max_tokens: int, piece: Callable[[int], bytes]
    ) -> None:
        self.made = 0
        self._ends, self._max_tokens, self._piece = ends, max_tokens, piece
        self._stops = StopMatcher(stops)

    def push(self, token: int) -> Literal["stop", "length"] | None:
        """How the output ends with this id; None where it goes on."""
        self.made += 1
        # every piece goes through the matcher, whatever else the token does
        if self._stops.push(self._piece(token)) or token in self._ends:
            return "stop"
        return "length" if self.made == self._max_tokens else None
