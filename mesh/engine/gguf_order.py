"""A serve as the child was asked for it, and where its output ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.engine.gguf_model import SamplingPlan
from mesh.engine.stops import Ending


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

    def ending_of(self, order: Order) -> Ending:
        """What says where an output of `order` ends."""
        ends = order.stop_ids if order.ignore_eos else order.stop_ids | self.ends
        return Ending(order.stop, ends, order.max_tokens, self.pieces.__getitem__)
