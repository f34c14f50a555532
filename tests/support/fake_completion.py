"""One completion as the fake vLLM server makes it: ids that follow from the prompt's, and the answer's shape."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from tests.support.vllm_folder import EOS, FIRST_BYTE, encode, text_of

DONE: Final = b"data: [DONE]\n\n"
_SAID: Final = [FIRST_BYTE + byte for byte in b"etaoin shrdlu,.\n"]
_CANDIDATES: Final = 4
_SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
)  # fmt: skip


class Server(Protocol):
    """What a completion needs to know of its server; fake_vllm.py says what each is."""

    name: str
    fingerprint: str
    context: int
    numbers: str
    counts_cached: bool
    clip: int | None
    most: int | None
    crowd: bool
    warm: bool
    logprobs: str
    passes_off: float
    per_event: int
    in_flight: int

    async def before(self, place: int) -> None: ...

    def cached(self, salt: Any, prompt: list[int]) -> int: ...


class Completion:
    """One completion as it is made."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self._server, self._body = server, body
        prompt = body["prompt"]
        self._prompt: list[int] = encode(prompt) if isinstance(prompt, str) else prompt[: server.clip]
        self._cached = server.cached(body.get("cache_salt"), self._prompt)
        self._limit = min(body.get("max_tokens", 16), server.context - len(self._prompt), server.most or 1 << 30)
        self.ids: list[int] = []
        self._logprobs: list[dict[int, float]] = []
        self._finish: str | None = None
        self._stop: int | str | None = None
        self._text = ""
        # what comes next depends on all ids before it, whether they are the prompt's or its own
        self._seen = hashlib.blake2b(server.numbers.encode(), digest_size=8)
        self._prompt_logprobs = [self._passed(token) for token in self._prompt]
        # only what is drawn depends on more than the ids
        self._moved = repr([body.get(name) for name in _SAMPLING]).encode() if body.get("temperature") else b""

    async def made(self) -> AsyncIterator[None]:
        """Once for each id, when it is there."""
        while self._finish is None:
            await self._server.before(len(self.ids))
            token, ranked = self._next()
            self.ids.append(token)
            self._seen.update(b" %d" % token)
            self._logprobs.append(ranked)
            self._text += text_of([token])
            self._end(token)
            yield

    def _passed(self, token: int) -> dict[str, Any] | None:
        """What it says of an id of the prompt, which it takes in: the best two and the id itself."""
        first = self._seen.digest() == hashlib.blake2b(self._server.numbers.encode(), digest_size=8).digest()
        ranked = _ranked(self._seen.digest())
        self._seen.update(b" %d" % token)
        if first:
            return None
        off = self._server.passes_off
        told = {token: ranked.get(token, -9.5), **dict(list(ranked.items())[:2])}
        ranks = {candidate: rank for rank, candidate in enumerate(ranked, 1)}
        return {
            str(i): {"logprob": value + off, "rank": ranks.get(i, 99), "decoded_token": text_of([i])}
            for i, value in told.items()
        }

    def _next(self) -> tuple[int, dict[int, float]]:
        """The next id, and the best two with the id itself among them."""
        body, server = self._body, self._server
        last = len(self.ids) == self._limit - 1
        hasher = self._seen.copy()
        if last and server.crowd and server.in_flight > 1:
            hasher.update(b" of %d" % server.in_flight)
        if last and server.warm and self._cached:
            hasher.update(b" warm")
        ranked = _ranked(hasher.digest())
        ids = list(ranked)
        token = ids[0]
        if self._moved:
            hasher.update(self._moved)
            token = ids[hasher.digest()[0] % _CANDIDATES]
        for biased, bias in (body.get("logit_bias") or {}).items():
            if bias >= 50:
                token = int(biased)
        logprob = ranked.get(token, -9.5)
        return token, {token: logprob, **dict(list(ranked.items())[:2])}

    def _end(self, token: int) -> None:
        body = self._body
        at = {stop: self._text.find(stop) for stop in body.get("stop") or () if stop in self._text}
        if token in (body.get("stop_token_ids") or ()):
            self._finish, self._stop = "stop", token
        elif token == EOS and not body.get("ignore_eos"):
            self._finish = "stop"
        elif at:
            self._stop, place = min(at.items(), key=lambda pair: pair[1])
            self._finish, self._text = "stop", self._text[:place]
        elif len(self.ids) >= self._limit:
            self._finish = "length"

    def whole(self) -> dict[str, Any]:
        choice = {
            "index": 0, "text": self._text, "logprobs": self._logprobs_of(0), "finish_reason": self._finish,
            "stop_reason": self._stop, "token_ids": self._shown(self.ids),
            "prompt_logprobs": self._prompt_logprobs if self._body.get("prompt_logprobs") else None,
            "prompt_token_ids": self._shown(self._prompt), "routed_experts": None,
        }  # fmt: skip
        usage = self._usage() | {"completion_tokens_details": None}
        counted = usage.get("prompt_tokens_details")
        unknown = {"created_cache_tokens": None, "multimodal_tokens": None}
        usage["prompt_tokens_details"] = counted and counted | unknown
        return self._frame([choice]) | {
            "service_tier": None, "system_fingerprint": self._server.fingerprint, "usage": usage,
            "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        }  # fmt: skip

    async def events(self) -> AsyncIterator[Any]:
        sent, said = 0, 0
        counts = (self._body.get("stream_options") or {}).get("include_usage")
        async for _ in self.made():
            if len(self.ids) - sent < self._server.per_event and self._finish is None:
                continue
            choice = {
                "index": 0, "text": self._text[said:], "logprobs": self._logprobs_of(sent),
                "finish_reason": self._finish, "stop_reason": self._stop,
                "prompt_token_ids": None if sent else self._shown(self._prompt),
                "token_ids": self._shown(self.ids[sent:]),
            }  # fmt: skip
            sent, said = len(self.ids), max(said, len(self._text))
            named = {"system_fingerprint": self._server.fingerprint}
            yield self._frame([choice]) | ({} if counts or self._finish is None else named)
        if counts:
            yield self._frame([]) | {"usage": self._usage(), "system_fingerprint": self._server.fingerprint}
        yield DONE

    def _frame(self, choices: list[Any]) -> dict[str, Any]:
        named = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": self._server.name}
        return named | {"choices": choices}

    def _shown(self, ids: list[int]) -> list[int] | None:
        return list(ids) if self._body.get("return_token_ids") else None

    def _usage(self) -> dict[str, Any]:
        prompt, completion = len(self._prompt), len(self.ids)
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        details = {"prompt_tokens_details": {"cached_tokens": self._cached}}
        return usage | (details if self._server.counts_cached else {})

    def _of_its_kind(self, told: dict[int, float]) -> dict[int, float]:
        """Values as the server's mode has them."""
        if self._server.logprobs == "logits":
            return {token: value + 30 for token, value in told.items()}
        if self._server.logprobs == "processed" and self._body.get("temperature"):
            return {token: value / self._body["temperature"] for token, value in told.items()}
        return told

    def _logprobs_of(self, start: int) -> dict[str, Any] | None:
        if self._body.get("logprobs") is None:
            return None
        by_id = self._body.get("return_tokens_as_token_ids")

        def spelled(token: int) -> str:
            return f"token_id:{token}" if by_id else text_of([token])

        ids, ranked = self.ids[start:], [self._of_its_kind(told) for told in self._logprobs[start:]]
        return {
            "text_offset": [12 * (start + n) for n in range(len(ids))],
            "token_logprobs": [told[token] for token, told in zip(ids, ranked, strict=True)],
            "tokens": [spelled(token) for token in ids],
            "top_logprobs": [{spelled(token): value for token, value in told.items()} for told in ranked],
        }


def _ranked(seed: bytes) -> dict[int, float]:
    """The likeliest ids with their log-probabilities, best first."""
    ids = [_SAID[(seed[0] + n * 5) % len(_SAID)] for n in range(_CANDIDATES)]
    if seed[1] < 4:
        ids[0] = EOS
    return dict(zip(ids, _falling(seed[2:]), strict=True))


def _falling(seed: bytes) -> list[float]:
    """Log-probabilities, each less than the one before it."""
    values, value = [], -0.75  # so that no two of them come to more than 1
    for byte in seed[:_CANDIDATES]:
        value -= (byte + 2) / 1024  # none closer to the next than a check can be sure of
        values.append(value)
    return values
