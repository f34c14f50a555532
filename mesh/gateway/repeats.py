"""Answers held in memory for a while, so that a repeated idempotency key gets the answer again and not only the
receipt. The ledger holds no answers; what falls out of here is gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mesh.errors import Conflict


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer, byte for byte as the first caller got it."""

    body: bytes
    content_type: str
    serve_id: str
    receipt_id: str


class Answers:
    """At most `max_count` answers and `max_bytes` bytes, each for `keep_s` seconds; the oldest go first."""

    def __init__(self, max_count: int, max_bytes: int, keep_s: float, clock: Callable[[], float]) -> None:
        self.max_bytes = max_bytes if max_count else 0
        self._max_count = max_count
        self._keep_s = keep_s
        self._clock = clock
        self._held: OrderedDict[tuple[str, str], tuple[float, bytes, Answer]] = OrderedDict()
        self._bytes = 0

    def get(self, caller: str, key: str, body_mac: bytes) -> Answer | None:
        """Raises Conflict (`idempotency_mismatch`) where the key was used with another body."""
        self._expire()
        held = self._held.get((caller, key))
        if held is None:
            return None
        if held[1] != body_mac:
            raise Conflict("idempotency key: already used with another body", code="idempotency_mismatch")
        return held[2]

    def put(self, caller: str, key: str, body_mac: bytes, answer: Answer) -> None:
        if len(answer.body) > self.max_bytes:
            return
        self._drop((caller, key))
        self._held[caller, key] = (self._clock() + self._keep_s, body_mac, answer)
        self._bytes += len(answer.body)
        self._expire()

    def _expire(self) -> None:
        now = self._clock()
        while self._held:
            oldest, (until, _, _) = next(iter(self._held.items()))
            if until > now and len(self._held) <= self._max_count and self._bytes <= self.max_bytes:
                return
            self._drop(oldest)

    def _drop(self, name: tuple[str, str]) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            self._bytes -= len(held[2].body)
