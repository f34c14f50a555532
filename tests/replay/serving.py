"""Serves that a real steward sealed in a real ledger, on a real engine, and what can be dishonest about them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mesh.engine.gguf import GgufEngine
from mesh.engine.protocol import Served, ServingEngine, TokenSink
from mesh.ledger import Position
from mesh.replay.replayer import By, replay
from mesh.replay.verdict import Verdict
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import Sealed
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_text
from mesh.steward.steward import SealedServe, Steward
from tests.support.stewards import Client

CHAT = "<|im_start|>user\nhow far is it?<|im_end|>\n<|im_start|>assistant\n"
NONCE = b"\x0a" * 32

Claims = Mapping[str, Any]


class Lying(Steward):
    """An honest steward up to where it signs: it then claims `lies` in place of what it knows. `outcome` and `engine`
    are merged, None leaves a field out."""

    lies: Claims = {}  # noqa: RUF012  replaced, never changed

    def _sign(self, position: Position, fields: dict[str, Any]) -> Sealed:
        told = dict(fields)
        for name, lie in self.lies.items():
            told[name] = {**fields[name].to_map(), **lie} if isinstance(lie, Mapping) else lie
        return super()._sign(position, told)


class Meddling:
    """A real engine with each id passed through `change(run, index, id)` on its way out. Runs are counted from 0."""

    def __init__(self, engine: ServingEngine, change: Callable[[int, int, int], int]) -> None:
        self.engine = engine
        self.runs = 0
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        run, self.runs = self.runs, self.runs + 1
        passing = _Passing(sink, lambda index, token: self._change(run, index, token))
        served = await self.engine.serve(request, prompt, passing)
        return dataclasses.replace(served, tokens=tuple(passing.tokens))


class _Passing:
    def __init__(self, sink: TokenSink, change: Callable[[int, int], int]) -> None:
        self.cancelled = sink.cancelled
        self.tokens: list[int] = []
        self._sink, self._change = sink, change

    def put(self, token: int) -> None:
        self.tokens.append(self._change(len(self.tokens), token))
        self._sink.put(self.tokens[-1])


def swapping(engine: ServingEngine, at: int, other: int | None = None) -> Meddling:
    """A falsifier: the id at index `at` becomes `other`, or a neighbour."""

    def change(run: int, index: int, token: int) -> int:
        return token if index != at else token ^ 1 if other is None else other

    return Meddling(engine, change)


class Room:
    """One steward, one engine, and the loop that both live on."""

    def __init__(self, runner: asyncio.Runner, steward: Lying, engine: GgufEngine) -> None:
        self.runner, self.steward, self.engine = runner, steward, engine

    def serve(
        self,
        engine: ServingEngine | None = None,
        *,
        client: Client | None = None,
        text: str = CHAT,
        handed: str | None = None,
        max_tokens: int = 12,
        lies: Claims | None = None,
        **sampling: Any,
    ) -> SealedServe:
        """Serve `text`, greedy unless `sampling` says otherwise; `handed` is what the engine gets in its place."""
        self.steward.lies = lies or {}
        fields = Sampling.greedy().to_map() | {"ignore_eos": True} | sampling
        serving = self._serve(engine or self.engine, client or Client(), text, handed or text, max_tokens, fields)
        return self.runner.run(serving)

    async def _serve(
        self, engine: ServingEngine, client: Client, text: str, handed: str, max_tokens: int, sampling: dict[str, Any]
    ) -> SealedServe:
        ids = await self.engine.encode(handed, special=True)
        request = ServeRequest.of(
            prompt_hash=prompt_hash_of_text(text, NONCE),
            prompt_tokens=len(ids),
            max_tokens=max_tokens,
            fidelity_floor=0,
            sampling=sampling,
            nonce=NONCE,
        )
        admitted = await self.steward.admit(request, [engine], caller="a caller")
        serve = await self.steward.serve(admitted, ids, client, serve_id=self.steward.new_serve_id())
        assert isinstance(serve, SealedServe)
        return serve

    def replay(
        self, serve: SealedServe, engine: ServingEngine | None = None, *, by: By = "auto", **disclosed: Any
    ) -> Verdict:
        """Replay what the ledger holds of `serve` with its disclosure, of which `disclosed` changes fields; None leaves
        a field out."""
        entry = self.steward.reader.by_serve(serve.receipt.serve_id)
        assert entry is not None
        disclosure = Disclosure.of(**serve.disclosure(prompt=CHAT).to_map() | disclosed)
        return self.runner.run(replay(entry.envelope, disclosure, engine or self.engine, {self.steward.public}, by=by))
