"""A score for engines that cannot be bitwise: how many of a serve's tokens this engine would have chosen too.

It is no verdict. Other hardware, other kernels or company in a batch flip close calls, and so do slightly other
weights: no share of matching tokens proves a serve, and none refutes one. What is counted: the engine goes on from the
prompt and the served tokens before each position, and chooses. Where it chooses another token, that is a mismatch, with
the margin between the engine's best two there; it then goes on from the served token, not from its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesh.engine.protocol import ServingEngine, can_check
from mesh.errors import EngineError, Refused, SchemaError
from mesh.replay.claim import Claim
from mesh.replay.decoding import decode
from mesh.replay.verdict import Verdict
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import Sealed
from mesh.schema.request import MILLION, Sampling, ServeRequest

MAX_RESTARTS = 64  # where an engine disagrees more often than that, the rest of the serve is not scored
# What cannot be judged, but compared: the same weights, run otherwise or without a promise.
_SCORED = frozenset(
    {"not-claimed", "engine-samples", "other-backend", "other-recipe", "other-settings", "unstable", "tie"}
)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`margin`, in logits, between the best two of the engine there; None where it does not tell. `chosen` is None
    where the engine would have ended."""

    index: int
    served: int
    chosen: int | None
    margin: float | None

    def to_json(self) -> dict[str, Any]:
        told = {"index": self.index, "served": self.served, "chosen": self.chosen, "margin": self.margin}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Score:
    """Of `tokens` served ids that were compared, `matching` are those that the engine chose too. `whole` is False where
    not all of them were compared."""

    tokens: int
    matching: int
    whole: bool
    mismatches: tuple[Mismatch, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "not_a_verdict": True,
            "tokens": self.tokens,
            "matching": self.matching,
            "whole": self.whole,
            "mismatches": [one.to_json() for one in self.mismatches],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Score:
        """Raises SchemaError for what `to_json` does not give."""
        try:
            mismatches = tuple(
                Mismatch(one["index"], one["served"], one.get("chosen"), one.get("margin"))
                for one in told["mismatches"]
            )
            return cls(told["tokens"], told["matching"], told["whole"], mismatches)
        except (KeyError, TypeError, AttributeError) as e:
            raise SchemaError(f"score: {type(e).__name__}: {e}") from None


async def score(sealed: Sealed, disclosure: Disclosure | None, engine: ServingEngine, verdict: Verdict) -> Score | None:
    """The score of a serve that could not be judged. None where there is nothing to compare: the output was not
    disclosed or does not open the commitment, the weights are others, the serve was sampled, where an engine that draws
    otherwise says nothing about the model, or what it may choose depends on more than the tokens before (a penalty, a
    grammar)."""
    if disclosure is None or verdict.reason not in _SCORED:
        return None
    claim = Claim.of(sealed.value, disclosure)
    if not claim.opened or not claim.output or not _greedy(claim.request.sampling):
        return None
    if claim.receipt.engine.weights_digest != engine.weights_digest:
        return None
    return await _in_one_pass(claim, claim.output, engine) or await _step_by_step(claim, claim.output, engine)


def _greedy(sampling: Sampling) -> bool:
    penalties = (sampling.frequency_penalty_u, sampling.presence_penalty_u, sampling.repetition_penalty_u)
    return sampling.temperature_u == 0 and penalties == (0, 0, MILLION) and sampling.grammar is None


async def _in_one_pass(claim: Claim, output: tuple[int, ...], engine: ServingEngine) -> Score | None:
    """As a Checker compares it, whether or not that could decide anything. None where it compares nothing."""
    if not can_check(engine) or engine.refusal(claim.request) is not None:
        return None
    try:
        await engine.ready()
        found = await engine.check(claim.request, claim.payload, output, cut=True)
    except (EngineError, Refused):
        return None
    within = [one for one in found.differences if one.served is not None and one.at < found.compared]
    if not 0 < found.compared <= len(output):
        return None
    mismatches = tuple(Mismatch(one.at, output[one.at], one.expected, _finite(one.margin)) for one in within)
    return Score(found.compared, found.compared - len(mismatches), found.compared == len(output), mismatches)


def _finite(margin: float | None) -> float | None:
    return margin if margin is not None and 0 <= margin < float("inf") else None


async def _step_by_step(claim: Claim, output: tuple[int, ...], engine: ServingEngine) -> Score | None:
    mismatches: list[Mismatch] = []
    at = 0
    for _ in range(MAX_RESTARTS + 1):
        rest = output[at:]
        request = _going_on(claim.request, at, len(rest))
        try:
            again = await decode(engine, request, (*claim.payload, *output[:at]), length=None)
        except EngineError:
            return None if at == 0 else Score(at, at - len(mismatches), False, tuple(mismatches))
        same = next(
            (i for i, token in enumerate(rest) if i >= len(again.tokens) or again.tokens[i] != token), len(rest)
        )
        if same == len(rest):
            return Score(len(output), len(output) - len(mismatches), True, tuple(mismatches))
        chosen = again.tokens[same] if same < len(again.tokens) else None
        mismatches.append(Mismatch(at + same, rest[same], chosen, again.margin(same)))
        at += same + 1
        if at == len(output):
            return Score(at, at - len(mismatches), True, tuple(mismatches))
    return Score(at, at - len(mismatches), False, tuple(mismatches))


def _going_on(request: ServeRequest, made: int, left: int) -> ServeRequest:
    """The request as if the prompt had `made` ids more. It is greedy, so nothing was drawn before."""
    return ServeRequest.of(**request.to_map() | {"prompt_tokens": request.prompt_tokens + made, "max_tokens": left})
