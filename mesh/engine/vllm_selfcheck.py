"""Whether this server gives the same numbers whatever else it is doing: measured at load, with as many requests at once
as will ever be sent, on a cold prefix cache and a warm one.

Ids alone would hide much: a difference in the last bit of a log-probability is the one that flips an id tomorrow. So
both are compared, bit for bit.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_stream import Chunk, read_answer
from mesh.errors import EngineFailed, EngineUnsupported

TOKENS: Final = 24  # decoded for each prompt
LONGEST: Final = 300  # ids; more than two blocks of any cache, so that a warm one is used
_SUM_MOST: Final = 1.01  # of a few probabilities, with what rounding adds
FIXED: Final = 4  # prompts in the probe, however many slots there are

# A request's ids and their log-probabilities.
Numbers = tuple[tuple[int, ...], tuple[float, ...]]
Run = Callable[[Sequence[int], str, Mapping[str, Any]], Awaitable[Numbers]]

# What a server's log-probabilities are taken from: logits as the model made them, what is left of them after biases,
# penalties, temperature and cuts, or no probabilities at all.
RAW: Final = "raw"
PROCESSED: Final = "processed"
LOGITS: Final = "logits"

GREEDY: Final[Mapping[str, Any]] = {"temperature": 0.0, "seed": None}
SEEDED: Final[Mapping[str, Any]] = {"temperature": 0.8, "seed": 7}


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """`results` by name of the comparison: None where all bits agreed, else the first position that differed. `known`:
    the evidence that stands behind this configuration, None where there is none. `probe`: 32 bytes over the fixed
    prompts' numbers, where they repeat; `logprobs` which kind of them the server gives."""

    results: Mapping[str, int | None]
    known: str | None
    probe: bytes | None
    logprobs: str = RAW

    @property
    def identical(self) -> bool:
        return all(at is None for at in self.results.values())

    @property
    def deterministic(self) -> bool:
        return self.identical and self.known is not None

    @property
    def reason(self) -> str:
        """One line for operators and clients."""
        if not self.identical:
            differ = ", ".join(f"{name} (position {at})" for name, at in self.results.items() if at is not None)
            return f"self-check: numbers differ in {differ}: serves are not claimed to repeat"
        agreed = "self-check: bit-identical " + ", ".join(self.results)
        if self.known is None:
            return (
                f"{agreed}; but nobody has vouched for this version, device and dtype: serves are not claimed to repeat"
            )
        return agreed


def probe_body(model: str, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """A request of `TOKENS` tokens with the best two of each."""
    return {
        "model": model, "prompt": list(prompt), "max_tokens": TOKENS, "ignore_eos": True,
        "return_token_ids": True, "logprobs": 2, "return_tokens_as_token_ids": True, "cache_salt": salt,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, **sampling,
    }  # fmt: skip


async def ask_numbers(
    server: VllmServer, model: str, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any]
) -> tuple[Numbers, str | None]:
    """One request, and what the server calls itself in its answer. Raises EngineUnsupported where it does not give
    what is compared, EngineFailed where it gives something else."""
    answer = read_answer(await server.complete(probe_body(model, prompt, salt, sampling)))
    if not isinstance(answer, Chunk) or answer.tokens is None or answer.prompt is None:
        raise EngineUnsupported(
            f"vllm server at {server.url}: gives no token ids (return_token_ids): too old, or no vLLM; "
            "text is not metered by tokenizing it again"
        )
    if answer.chosen is None:
        raise EngineUnsupported(f"vllm server at {server.url}: gives no log-probabilities (logprobs)")
    if answer.prompt != tuple(prompt) or len(answer.tokens) != TOKENS:
        raise EngineFailed(f"vllm server at {server.url}: clipped a prompt or an answer in the self-check")
    return (answer.tokens, answer.chosen), answer.fingerprint


async def ask_kind(server: VllmServer, model: str, prompt: Sequence[int], salt: Callable[[], str]) -> str:
    """Which of `RAW`, `PROCESSED` and `LOGITS` a server gives where log-probabilities are asked for, which nothing in
    an answer says: those at one position under two temperatures are equal only where they are from before it. Raises
    what `ask_numbers` does."""
    best: list[tuple[tuple[int, float], ...]] = []
    for sampling in ({"temperature": 1.0, "seed": 1}, {"temperature": 2.0, "seed": 1}):
        body = {**probe_body(model, prompt, salt(), sampling), "max_tokens": 1}
        answer = read_answer(await server.complete(body))
        if not isinstance(answer, Chunk) or not answer.ranked:
            raise EngineUnsupported(f"vllm server at {server.url}: gives no log-probabilities (logprobs)")
        best.append(answer.ranked[0])
    first, second = (entries[:2] for entries in best)
    if sum(math.exp(min(value, 1.0)) for _, value in first) > _SUM_MOST:
        return LOGITS
    return RAW if first == second else PROCESSED


async def measure(
    run: Run, *, slots: int, vocabulary: int, context_tokens: int, salt: Callable[[], str], known: str | None
) -> SelfCheck:
    """`run(prompt, salt, sampling)` makes one request of `TOKENS` tokens; two under one salt share the prefix cache,
    and a salt from `salt()` is one that no cache has seen. Raises what `run` raises."""
    longest = min(LONGEST, context_tokens - TOKENS)
    prompts = [probe_prompt(n, longest, vocabulary) for n in range(max(slots, FIXED))]
    alone = [await run(prompt, salt(), GREEDY) for prompt in prompts]
    again = [await run(prompt, salt(), GREEDY) for prompt in prompts[:FIXED]]
    results = {"repeat": _first_difference(alone[:FIXED], again)}

    async def together(salts: Sequence[str], sampling: Mapping[str, Any]) -> list[Numbers]:
        full = [run(prompt, one, sampling) for prompt, one in zip(prompts[:slots], salts, strict=False)]
        return await asyncio.gather(*full)

    salts = [salt() for _ in prompts]
    results["together"] = _first_difference(alone, await together(salts, GREEDY))
    results["warm-together"] = _first_difference(alone, await together(salts, GREEDY))
    results["warm"] = _first_difference(alone, [await run(prompts[0], salts[0], GREEDY)])
    seeded = [await run(prompt, salt(), SEEDED) for prompt in prompts[:FIXED]]
    results["seeded"] = _first_difference(seeded, (await together([salt() for _ in prompts], SEEDED))[:FIXED])
    return SelfCheck(results, known, _digest(alone[:FIXED]) if results["repeat"] is None else None)


def probe_prompt(n: int, longest: int, vocabulary: int) -> list[int]:
    """The n-th prompt: the same on every machine for one vocabulary, of a length of its own."""
    length = max(1, longest - n * 37 % max(1, longest - 8))
    return [(i * 7919 + n * 104_729 + 13) % vocabulary for i in range(length)]


def _first_difference(known: Sequence[Numbers], others: Sequence[Numbers]) -> int | None:
    """The earliest position at which two runs of one prompt differ; every prompt in `others` is compared."""
    places = []
    for (ids, logprobs), (other_ids, other_logprobs) in zip(known, others, strict=False):
        pairs = list(zip(ids, logprobs, strict=True))
        other_pairs = list(zip(other_ids, other_logprobs, strict=True))
        if pairs != other_pairs:
            first = next((i for i, (a, b) in enumerate(zip(pairs, other_pairs, strict=False)) if a != b), None)
            places.append(min(len(pairs), len(other_pairs)) if first is None else first)
    return min(places, default=None)


def _digest(runs: Sequence[Numbers]) -> bytes:
    """Over each run's number of ids, its ids as u32 and its log-probabilities as IEEE 754 doubles, little-endian."""
    hasher = blake3()
    for ids, logprobs in runs:
        hasher.update(struct.pack(f"<Q{len(ids)}I{len(logprobs)}d", len(ids), *ids, *logprobs))
    return hasher.digest()
