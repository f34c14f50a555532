"""A serve as the child was asked for it, and where its output ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mesh.engine.gguf_model import SamplingPlan
from mesh.engine.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class Order:
    """`serve` is the parent's number for it; `scores` of how many of the likeliest ids scores are wanted, None:
    none."""

    serve: int
    prompt: tuple[int, ...]
    max_tokens: int
    plan: SamplingPlan
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    ignore_eos: bool
    scores: int | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`pieces` are the bytes of each id, `ends` the ids that end an output."""

    pieces: Sequence[bytes]
    ends: frozenset[int]


class Ending:
    """Follows one output, `made` ids of it so far, and says where it ends."""

    def __init__(self, order: Order, vocabulary: Vocabulary) -> None:
        self.made = 0
        self._order, self._vocabulary = order, vocabulary
        self._stops = StopMatcher(order.stop)

    def push(self, token: int) -> Literal["stop", "length"] | None:
        """How the output ends with this id; None where it goes on."""
        order, vocabulary = self._order, self._vocabulary
        self.made += 1
        # every piece goes through the matcher, whatever else the token does
        stopped = self._stops.push(vocabulary.pieces[token])
        if stopped or token in order.stop_ids or (token in vocabulary.ends and not order.ignore_eos):
            return "stop"
        return "length" if self.made == order.max_tokens else None
