"""A serve that is in the child, and what none can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mesh.engine.protocol import Scores, Served, TokenSink
from mesh.errors import EngineError, EngineFailed
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest


@dataclass(slots=True)
class Running:
    """`done` gets how it ended, or why it did not end well."""

    sink: TokenSink
    vocabulary: int
    done: asyncio.Future[str]
    tokens: list[int] = field(default_factory=list)
    margins: list[float | None] = field(default_factory=list)

    def take(self, token: int, margin: float | None, scores: Scores | None) -> None:
        """One more id. Raises EngineFailed for one that no vocabulary of this size has."""
        if self.done.done():
            return
        if token >= self.vocabulary:
            raise EngineFailed(f"engine pipe: id {token} outside the vocabulary of {self.vocabulary}")
        self.tokens.append(token)
        self.margins.append(margin)
        try:
            if scores is None:
                self.sink.put(token)
            else:
                self.sink.put(token, scores)
        except Exception as e:  # noqa: BLE001 - one serve's sink must not end the others
            self.done.set_exception(EngineFailed(f"gguf engine: the sink failed: {type(e).__name__}"))

    def served(self, finish: str, tokens_in: int, **told: Any) -> Served:
        """What the engine gives back; `told` is what else it says in the outcome."""
        made = len(self.tokens)
        outcome = ServeOutcome.of(
            finish=finish, counted_by="engine", tokens_in=tokens_in, tokens_out=made, tokens_accepted=made,
            cache_hit_tokens=0, spec_proposed=0, spec_accepted=0, **told,
        )  # fmt: skip
        known = tuple(margin for margin in self.margins if margin is not None)
        return Served(tuple(self.tokens), outcome, known if len(known) == made else None)

    def end(self, ending: str | EngineError) -> None:
        """`ending` is its finish, or why it has none."""
        if self.done.done():
            return
        if isinstance(ending, EngineError):
            self.done.set_exception(ending)
        else:
            self.done.set_result(ending)


def refusal_of(request: ServeRequest, vocabulary: int, context_tokens: int) -> str | None:
    """Why a GGUF engine cannot do what the request asks, naming the field; None where it can."""
    if request.decision is not None:
        return "decision: this engine makes no typed decisions"
    if any(pair[0] >= vocabulary for pair in request.sampling.logit_bias):
        return f"logit_bias: names an id that the vocabulary of {vocabulary} does not have"
    if request.prompt_tokens < 1:
        return "prompt: empty, there is nothing to go on from"
    needed = request.prompt_tokens + request.max_tokens
    if needed > context_tokens:
        return f"max_tokens: prompt and output need {needed} tokens, the context holds {context_tokens}"
    return None


def check_serve(request: ServeRequest, prompt: Sequence[int], refusal: str | None, vocabulary: int) -> None:
    """Raises EngineFailed for what the gateway refuses with better words; nothing is clipped here if it does not."""
    if refusal is not None:
        raise EngineFailed(f"gguf engine: {refusal}")
    if len(prompt) != request.prompt_tokens:
        raise EngineFailed(f"gguf engine: {len(prompt)} prompt ids, the request says {request.prompt_tokens}")
    if not all(0 <= token < vocabulary for token in prompt):
        raise EngineFailed(f"gguf engine: a prompt id is outside the vocabulary of {vocabulary}")
