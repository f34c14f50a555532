"""The reference engine: no weights, known answers, real work. What tests, vectors and a first demonstration run on.

Its ids are a SplitMix64 stream: the state starts as the first 8 bytes of `prompt_hash` (little-endian) XOR
`max_tokens` << 1, and each step gives one id, modulo 32000. So they depend on the request alone: not on the payload,
not on the sampling. Temperature, top_p, top_k, min_p and the seed choose from a distribution, and there is none here
to choose from; they are accepted because they ask for nothing that is not done. What asks for something (stops,
biases, penalties, a grammar, a decision) is refused.

Its cache has a rule of its own: where the same stream was served before, every id made counts as a cache hit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mesh.engine.protocol import Served, TokenSink
from mesh.errors import BadRequest, EngineFailed, EngineUnavailable
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity, ServeOutcome
from mesh.schema.request import MILLION, ServeRequest

VOCABULARY = 32_000  # ids 0..31999

# The version of the stream above, not of this package: a receipt stays replayable while the ids stay the same.
_BACKEND_ID = "reference/1/none/none/none/none"

_MASK64 = 2**64 - 1
_SEEN_MAX = 65_536  # streams remembered for the cache rule; the oldest is forgotten first
_BURN_CHUNK = 4096  # mixing steps between two looks at the event loop


def stream(prompt_hash: bytes, max_tokens: int) -> Iterator[int]:
    """The endless SplitMix64 stream of 64-bit values for a request; the ids are these modulo `VOCABULARY`."""
    state = _seed(prompt_hash, max_tokens)
    while True:
        state = (state + 0x9E37_79B9_7F4A_7C15) & _MASK64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK64
        yield z ^ (z >> 31)


def _seed(prompt_hash: bytes, max_tokens: int) -> int:
    return int.from_bytes(prompt_hash[:8], "little") ^ (max_tokens << 1)


class ReferenceEngine:
    """Implements ServingEngine and TextEngine.

    `work_per_token` is the number of integer mixing steps burnt per id, for a meter to see. `spec_accept_permille`
    models speculative decoding: as many ids proposed as made, that share of them accepted. `report_delivered` puts the
    rating into the outcome as delivered; `weights_digest` and `precision` play a model's identity.
    """

    def __init__(
        self,
        recipe_id: str = "reference",
        *,
        fidelity: Fidelity = Fidelity.F0,
        est_uj_per_token: int | None = None,
        work_per_token: int = 64,
        spec_accept_permille: int = 0,
        report_delivered: bool = False,
        weights_digest: ContentId | None = None,
        precision: str | None = None,
        context_tokens: int = 1_000_000,
        slots: int = 64,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.backend_id = _BACKEND_ID
        self.recipe_id = recipe_id
        self.fidelity = fidelity
        self.est_uj_per_token = est_uj_per_token
        self.weights_digest = weights_digest
        self.template_digest: ContentId | None = None
        self.precision = precision
        self.settings: Mapping[str, Any] = {
            "engine": "reference",
            "stream": "splitmix64",
            "vocabulary": VOCABULARY,
            "spec_accept_permille": max(0, min(spec_accept_permille, 1000)),
        }
        self.process = random(16)
        self.context_tokens = context_tokens
        self.slots = slots
        self._work_per_token = work_per_token
        self._report_delivered = report_delivered
        self._seen: dict[int, None] = {}
        self._closed = False

    def deterministic(self, request: ServeRequest) -> bool:
        return True

    def refusal(self, request: ServeRequest) -> str | None:
        sampling = request.sampling
        asked = {
            "stop": bool(sampling.stop),
            "stop_ids": bool(sampling.stop_ids),
            "logit_bias": bool(sampling.logit_bias),
            "frequency_penalty": sampling.frequency_penalty_u != 0,
            "presence_penalty": sampling.presence_penalty_u != 0,
            "repetition_penalty": sampling.repetition_penalty_u != MILLION,
            "grammar": sampling.grammar is not None,
            "decision": request.decision is not None,
        }
        field = next((name for name, wanted in asked.items() if wanted), None)
        return None if field is None else f"{field}: the reference engine's ids cannot follow it"

    async def ready(self) -> None:
        if self._closed:
            raise EngineUnavailable("reference engine: closed")

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        await self.ready()
        refusal = self.refusal(request)
        if refusal is not None:
            raise EngineFailed(f"reference engine: {refusal}")
        needed = len(prompt) + request.max_tokens
        if needed > self.context_tokens:
            raise EngineFailed(f"reference engine: {needed} tokens, the context holds {self.context_tokens}")
        cached = self._remember(_seed(request.prompt_hash, request.max_tokens))
        tokens: list[int] = []
        values = stream(request.prompt_hash, request.max_tokens)
        while len(tokens) < request.max_tokens:
            # Also what lets a client's cancel, and everyone else's serve, come in between two ids.
            await asyncio.sleep(0)
            if sink.cancelled.is_set():
                break
            value = next(values)
            await self._burn(value)
            tokens.append(value % VOCABULARY)
            sink.put(tokens[-1])
        return Served(tuple(tokens), self._outcome(request, len(prompt), len(tokens), cached))

    async def close(self) -> None:
        self._closed = True

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """One `role: content` line per message, then `assistant:`."""
        lines = []
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise BadRequest("messages: each needs a role and a content in text", code="template_error")
            lines.append(f"{role}: {content}\n")
        return "".join(lines) + "assistant:"

    async def encode(self, text: str, *, special: bool, bare: bool = False) -> list[int]:
        """The UTF-8 bytes as ids 0..255. There are no control tokens, so `special` changes nothing."""
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        """A readable word for each id, such as b" w00042" for 42. What is read are bytes, what is written are words:
        this is no tokenizer that goes both ways."""
        if not 0 <= token < VOCABULARY:
            raise BadRequest(f"token {token}: the reference engine has ids 0..{VOCABULARY - 1}")
        return b" w%05d" % token

    def _remember(self, seed: int) -> bool:
        """Whether this stream was served before; from now on it was."""
        known = seed in self._seen
        self._seen[seed] = None
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return known

    async def _burn(self, x: int) -> None:
        """`work_per_token` steps of a 64-bit linear congruential generator."""
        for start in range(0, self._work_per_token, _BURN_CHUNK):
            if start:
                await asyncio.sleep(0)
            for _ in range(min(_BURN_CHUNK, self._work_per_token - start)):
                x = (x * 6364136223846793005 + 1442695040888963407) & _MASK64

    def _outcome(self, request: ServeRequest, tokens_in: int, made: int, cached: bool) -> ServeOutcome:
        permille = self.settings["spec_accept_permille"]
        return ServeOutcome.of(
            finish="length" if made == request.max_tokens else "cancelled",
            counted_by="engine",
            tokens_in=tokens_in,
            tokens_out=made,
            tokens_accepted=made,
            cache_hit_tokens=made if cached else 0,
            spec_proposed=made if permille else 0,
            spec_accepted=made * permille // 1000,
            delivered_fidelity=int(self.fidelity) if self._report_delivered else None,
            weights_digest=self.weights_digest,
            precision=self.precision,
        )
