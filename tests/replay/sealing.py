"""Serves sealed by hand: what a steward does, in the open, so that a test can make any single step dishonest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Served, ServingEngine, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema.commitment import opening, opening_key, output_commitment
from mesh.schema.disclosure import Disclosure, settings_digest
from mesh.schema.energy import Energy
from mesh.schema.envelope import SigningKey, seal
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest, pack_ids, payload_digest, prompt_hash_of_text

KEY = SigningKey(bytes(range(32)))
SERVE_ID = bytes(range(16))
PROMPT = "user: how far is it?\nassistant:"
NONCE = b"\x0a" * 32
ABSENT = Energy.of(basis="absent", sources=[], span_ns=1, reason="no-meter")


class Sink:
    """Takes `length` ids and then cancels; None: takes all."""

    def __init__(self, length: int | None = None) -> None:
        self.cancelled = CallOff()
        self.tokens: list[int] = []
        self._length = length
        if length == 0:
            self.cancelled.set()

    def put(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) == self._length:
            self.cancelled.set()


@dataclass(frozen=True)
class Case:
    """A sealed serve as its caller holds it."""

    receipt: Receipt
    disclosure: Disclosure

    @property
    def envelope(self) -> bytes:
        return seal(self.receipt, KEY).envelope

    @property
    def output(self) -> list[int]:
        assert self.disclosure.output_ids is not None
        return self.disclosure.output_ids

    def disclosing(self, **changes: Any) -> Case:
        """The same serve with another disclosure; None leaves a field out."""
        return Case(self.receipt, Disclosure.of(**{**_fields(self.disclosure), **changes}))

    def claiming(self, **changes: Any) -> Case:
        """The same serve with another receipt, sealed by the same steward. `outcome` and `engine` are merged."""
        fields = self.receipt.to_map()
        for name in ("outcome", "engine"):
            merged = fields[name] | changes.pop(name, {})
            fields[name] = {key: value for key, value in merged.items() if value is not None}
        fields |= changes
        return Case(Receipt.of(**fields), self.disclosure)

    def replay(self, engine: ServingEngine | None = None, *, trust: Collection[bytes] = (KEY.public,)) -> Verdict:
        return asyncio.run(replay(self.envelope, self.disclosure, engine or ReferenceEngine(), trust))


def _fields(disclosure: Disclosure) -> dict[str, Any]:
    return {name: getattr(disclosure, name) for name in type(disclosure).required()}


def make_request(*, max_tokens: int = 12, prompt: str = PROMPT, **changes: Any) -> ServeRequest:
    fields = {
        "prompt_hash": prompt_hash_of_text(prompt, NONCE),
        "prompt_tokens": len(prompt.encode()),
        "max_tokens": max_tokens,
        "fidelity_floor": 0,
        "sampling": Sampling.greedy(),
        "nonce": NONCE,
    }
    return ServeRequest.of(**{**fields, **changes})


def serve(
    engine: ServingEngine | None = None,
    request: ServeRequest | None = None,
    *,
    payload: Sequence[int] | None = None,
    cut: int | None = None,
    committed: Sequence[int] | None = None,
    serve_id: bytes = SERVE_ID,
) -> Case:
    """Run a request and seal it honestly, but for `committed`: ids to seal in place of those that were made."""
    engine = engine or ReferenceEngine()
    request = request or make_request()
    ids = list(PROMPT.encode()) if payload is None else list(payload)
    served = asyncio.run(engine.serve(request, ids, Sink(cut)))
    tokens = served.tokens if committed is None else tuple(committed)
    salt = opening(opening_key(KEY.seed), request.id, serve_id)
    outcome = served.outcome.to_map() | {"tokens_out": len(tokens), "tokens_delivered": len(tokens)}
    receipt = Receipt.of(
        v="mesh/1", steward=KEY.public, seq=0, serve_id=serve_id, request_id=request.id,
        prompt_hash=request.prompt_hash, max_tokens=request.max_tokens, started_ns=1, ended_ns=2,
        engine=EngineBlock.of(
            backend_id=engine.backend_id, recipe_id=engine.recipe_id, fidelity=int(engine.fidelity),
            deterministic=engine.deterministic(request), settings_digest=settings_digest(dict(engine.settings)),
            process=engine.process, weights_digest=engine.weights_digest,
        ),
        outcome=outcome, energy=ABSENT,
        output_commitment=output_commitment(salt, request.id, payload_digest(ids), tokens),
    )  # fmt: skip
    disclosure = Disclosure.of(
        serve_id=serve_id, request=request, payload=pack_ids(ids), opening=salt, settings=dict(engine.settings),
        output=pack_ids(tokens), prompt=PROMPT,
    )  # fmt: skip
    return Case(receipt, disclosure)


class Playing(ReferenceEngine):
    """A reference engine that plays a part: `shown(run, made)` is what it gives back for its run number `run`."""

    def __init__(self, shown: Callable[[int, Served], Served], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.runs = 0
        self._shown = shown

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        run, self.runs = self.runs, self.runs + 1
        served = self._shown(run, await super().serve(request, prompt, Sink()))
        for token in served.tokens:
            sink.put(token)
        return served


class Renamed(ReferenceEngine):
    def __init__(self, backend_id: str, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.backend_id = backend_id


def told(verdict: Verdict) -> tuple[str, int, str | None, str | None]:
    return verdict.kind, verdict.row, verdict.reason, verdict.field


def retold(made: Served, tokens: Sequence[int], **outcome: object) -> Served:
    """What an engine gives back for other ids, counted right."""
    counts = {"tokens_out": len(tokens), "tokens_accepted": len(tokens)}
    return Served(tuple(tokens), ServeOutcome.of(**(made.outcome.to_map() | counts | outcome)), made.margins)


def changed_at(index: int, ids: Sequence[int]) -> list[int]:
    return [*ids[:index], ids[index] ^ 1, *ids[index + 1 :]]
