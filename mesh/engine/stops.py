"""Stop strings over the bytes of an output whose tokens end anywhere, inside a character or inside a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Says at which token one of `stops` is complete in the output. Pieces are handed over in order; memory is
    bounded by the longest stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop.encode() for stop in stops if stop)
        self._reach = max(map(len, self._stops), default=1) - 1
        self._tail = b""
        self.matched = False

    def push(self, piece: bytes) -> bool:
        """Add a token's bytes. True once a stop string lies wholly in what was pushed, and from then on."""
        if self._stops and piece and not self.matched:
            seen = self._tail + piece
            self.matched = any(stop in seen for stop in self._stops)
            self._tail = seen[len(seen) - self._reach :] if self._reach < len(seen) else seen
        return self.matched
