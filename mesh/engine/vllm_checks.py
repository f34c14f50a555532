"""Known outputs checked by a vLLM server in one pass: the prompt's log-probabilities, where the prompt is prompt and
output.

What a server computes for many positions at once need not be what it computes for each alone, to the last bit. How far
the two ways differ is measured before the first check, on serves of the check's own; and no choice is agreed with whose
best two are closer than that many times over. Decoding decides those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mesh.engine.protocol import CheckResult, Difference
from mesh.engine.stops import Ending
from mesh.engine.vllm_requests import bent
from mesh.engine.vllm_selfcheck import GREEDY, LONGEST, TOKENS, probe_body, probe_prompt
from mesh.engine.vllm_stream import Chunk, read_answer, read_prompt_logprobs
from mesh.errors import EngineFailed
from mesh.schema.request import ServeRequest

# Natural log-probabilities: two ways to the same numbers that differ by more than the last bits are other numbers.
_NEAR: Final = 1e-4
_TIMES: Final = 64  # as far apart as two ids must be, in what the two ways differ by
LEAST_SURE: Final = 1e-5
_CLEAR: Final = 1e-2  # between two ids that no two ways to the same numbers exchange
_PROBES: Final = 2

Ranked = tuple[tuple[int, float], ...]  # the likeliest ids at one position with their log-probabilities, best first
Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def undecidable(request: ServeRequest, *, raw: bool) -> str | None:
    """Why no check on a vLLM server can decide anything of this request; `raw`: it gives the model's own
    log-probabilities."""
    if request.decision is not None:
        return "a typed decision commits to no output"
    if request.sampling.temperature_u != 0:
        return "what a vLLM server drew cannot be drawn again from its log-probabilities"
    if bent(request):
        return "a bias, penalty or grammar moved what was chosen from, and a vLLM server gives what was there before"
    return None if raw else "this server gives no log-probabilities of the model's own"


@dataclass(frozen=True, slots=True)
class Checking:
    """One check. `ask` has a completion made in one piece; `salt` gives a prefix cache of its own; `piece` is an id's
    bytes and `ends` the ids that end an output."""

    ask: Ask
    model: str
    salt: Callable[[], str]
    piece: Callable[[int], bytes]
    ends: frozenset[int]

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool, far: float | None
    ) -> CheckResult:
        """`far`: what `measured` gave. Raises EngineError."""
        if cut and not output:
            return CheckResult("agreed")
        ranked = await self._ranked([*prompt, *output[:-1]], len(output) or 1)
        sampling = request.sampling
        ends = frozenset() if sampling.ignore_eos else self.ends
        ending = Ending(sampling.stop, {*sampling.stop_ids, *ends}, request.max_tokens, self.piece)
        found: list[Difference] = []
        sure = max(_TIMES * (far or 0.0), LEAST_SURE)
        close: int | None = None
        finish = None
        for at, (served, best) in enumerate(zip(output, ranked, strict=False)):
            margin = _margin(best)
            if margin < sure and close is None:
                close = at
            if served != best[0][0]:
                found.append(Difference(at, served, best[0][0], margin))
            finish = ending.push(served)
            if finish is not None and at + 1 < len(output):
                found.append(Difference(at + 1, output[at + 1], None))
                break
        compared = ending.made
        if finish is None and not cut and not found:
            after = ranked[-1] if not output else (await self._ranked([*prompt, *output], 1))[0]
            found.append(Difference(len(output), None, after[0][0], _margin(after)))
        # what differs before the first close choice differs for sure
        if close is not None and not (found and found[0].at < close):
            reason = f"the best two ids at {close} are too close for a pass to tell them apart as decoding does"
            return CheckResult("undecided", compared, tuple(found), reason=reason)
        if found:
            return CheckResult("differs", compared, tuple(found))
        return CheckResult("agreed", compared) if cut else CheckResult("agreed", compared, (), finish, compared)

    async def measured(self, context_tokens: int, vocabulary: int) -> float | None:
        """By how much the log-probabilities of passes differ from those of decoding, over serves of the check's own;
        None where ids do that decoding is sure of."""
        worst = 0.0
        for n in range(_PROBES):
            prompt = probe_prompt(n, min(LONGEST, context_tokens - TOKENS), vocabulary)
            decoded = _chunk(await self.ask(self._body(prompt)))
            assert decoded.tokens is not None
            assert decoded.ranked is not None
            passed = await self._ranked([*prompt, *decoded.tokens[:-1]], len(decoded.tokens))
            for one, other in zip(decoded.ranked, passed, strict=True):
                if one[0][0] != other[0][0] and _margin(one) >= _CLEAR:
                    return None
                worst = max(worst, abs(one[0][1] - other[0][1]), abs(one[1][1] - other[1][1]))
        return worst

    async def _ranked(self, ids: Sequence[int], count: int) -> list[Ranked]:
        """What the model says at the last `count` - 1 of `ids`, and after them, in one pass."""
        answer = await self.ask({**self._body(ids), "prompt_logprobs": 2, "max_tokens": 1})
        chunk = _chunk(answer)
        if chunk.prompt != tuple(ids):
            raise EngineFailed("vllm server: read another prompt than it was given in a check")
        assert chunk.ranked is not None
        places = read_prompt_logprobs(answer, len(ids))
        return [*places[len(places) - count + 1 :], chunk.ranked[0]]

    def _body(self, ids: Sequence[int]) -> dict[str, Any]:
        return probe_body(self.model, ids, self.salt(), GREEDY)


def unsure(far: float | None) -> str | None:
    """Why checks decide nothing where passes and decoding are `far` apart; None where they can."""
    if far is not None and far <= _NEAR:
        return None
    how = "in ids" if far is None else f"by {far:.3g}"
    return f"a pass over an output and decoding it differ {how} on this server"


def unfit_of(request: ServeRequest, prompt: Sequence[int], output: Sequence[int], vocabulary: int) -> str | None:
    """Why an output cannot be held against a model; None where it can."""
    if not all(0 <= token < vocabulary for token in (*prompt, *output)):
        return f"an id is outside the vocabulary of {vocabulary}"
    if len(output) > request.max_tokens:
        return f"the output has {len(output)} ids, max_tokens is {request.max_tokens}"
    return None


def _margin(ranked: Ranked) -> float:
    return ranked[0][1] - ranked[1][1]


def _chunk(answer: dict[str, Any]) -> Chunk:
    chunk = read_answer(answer)
    if not isinstance(chunk, Chunk) or not chunk.tokens or not chunk.ranked:
        raise EngineFailed("vllm server: gave no token ids or log-probabilities in a check")
    if any(len(entry) < 2 for entry in chunk.ranked):
        raise EngineFailed("vllm server: gave fewer log-probabilities than were asked for in a check")
    return chunk
