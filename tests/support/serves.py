"""Requests and sinks for tests that talk to an engine directly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Scores, Served, ServingEngine
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_ids


class Sink:
    """Keeps what is put. `first` is set with the first token; after `cancel_after` tokens nobody wants more."""

    def __init__(self, cancel_after: int | None = None) -> None:
        self.cancelled = CallOff()
        self.first = asyncio.Event()
        self.tokens: list[int] = []
        self._cancel_after = cancel_after

    def put(self, token: int) -> None:
        self.tokens.append(token)
        self.first.set()
        if len(self.tokens) == self._cancel_after:
            self.cancelled.set()


def request_for(prompt: Sequence[int], max_tokens: int, **sampling: Any) -> ServeRequest:
    """A greedy request over `prompt`, with `sampling` fields replaced."""
    return ServeRequest.of(
        prompt_hash=prompt_hash_of_ids(prompt, None),
        prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        fidelity_floor=0,
        sampling=Sampling.from_map(Sampling.greedy().to_map() | sampling),
    )


async def serve(
    engine: ServingEngine, prompt: Sequence[int], max_tokens: int, sink: Sink | None = None, **sampling: Any
) -> Served:
    sink = sink or Sink()
    served = await engine.serve(request_for(prompt, max_tokens, **sampling), prompt, sink)
    assert tuple(sink.tokens) == served.tokens
    return served


class ScoreSink(Sink):
    """One that also wants the scores of so many ids."""

    def __init__(self, scores_wanted: int) -> None:
        super().__init__()
        self.scores_wanted = scores_wanted
        self.scores: list[Scores | None] = []

    def put(self, token: int, scores: Scores | None = None) -> None:
        super().put(token)
        self.scores.append(scores)
