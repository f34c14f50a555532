"""Honest serves of a real model under mixed settings, two at a time: one pass over each output verifies it, and nothing
is ever Diverged. And stewards that are not honest: each of their receipts is.

`MESH_SOAK` is how many honest serves, 200 unless it says otherwise; `make soak` takes 2,000.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import Served, ServingEngine, TokenSink
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import MILLION, Sampling, ServeRequest, prompt_hash_of_ids
from mesh.steward.steward import SealedServe, Steward
from tests.support.models import smollm2_path
from tests.support.stewards import Client, running
from tests.support.tiny_gguf import write_tiny_gguf

SERVES, AT_ONCE = int(os.environ.get("MESH_SOAK", "200")), 2
WORDS = ("The moon is", "Once upon a", "def add(a,", "Paris, the", "1, 2, 3,", "Dear Sir or", "¿Dónde está", "東京は")
SEEDED = {"temperature_u": 800_000, "top_p_u": 950_000}
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    SEEDED,
    SEEDED | {"top_k": 20, "min_p_u": 50_000},
    {"ignore_eos": True},
    {"repetition_penalty_u": 1_200_000},
    SEEDED | {"frequency_penalty_u": 500_000, "presence_penalty_u": 300_000, "temperature_u": 1_300_000},
    {"stop": [" the", "."]},
    SEEDED | {"logit_bias": [[28, 2 * MILLION], [30, -5 * MILLION]], "stop": ["\n"]},
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def sealed(
    steward: Steward, engine: ServingEngine, ids: Sequence[int], max_tokens: int, client: Client, **sampling: Any
) -> SealedServe:
    request = ServeRequest.of(
        prompt_hash=prompt_hash_of_ids(ids, bytes(32)), prompt_tokens=len(ids), max_tokens=max_tokens,
        fidelity_floor=0, sampling=Sampling.greedy().to_map() | sampling, nonce=bytes(32),
    )  # fmt: skip
    admitted = await steward.admit(request, [engine], caller="a caller")
    serve = await steward.serve(admitted, ids, client, serve_id=steward.new_serve_id())
    assert isinstance(serve, SealedServe)
    return serve


async def verdict_of(steward: Steward, engine: ServingEngine, serve: SealedServe) -> Verdict:
    entry = steward.reader.by_serve(serve.receipt.serve_id)
    assert entry is not None
    return await replay(entry.envelope, serve.disclosure(), engine, {steward.public})


async def served(steward: Steward, engine: GgufEngine, count: int) -> list[SealedServe]:
    """`count` serves of settings in turns, `AT_ONCE` at a time; each ninth is cut by its client."""
    draw = random.Random(count)
    made: list[SealedServe] = []
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            sampling = dict(SETTINGS[number % len(SETTINGS)])
            if "temperature_u" in sampling:
                sampling["seed"] = draw.randrange(2**32)
            ids = await engine.encode(draw.choice(WORDS), special=False)
            client = Client(leave_after=2 if number % 9 == 8 else None)
            made.append(await sealed(steward, engine, ids, draw.randint(1, 12), client, **sampling))

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return made


@pytest.mark.deep
@pytest.mark.real_model
def test_honest_serves_are_verified_by_one_pass_each(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def main() -> tuple[list[SealedServe], list[Verdict]]:
        serving = await GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", slots=AT_ONCE, context_tokens=64))
        assert serving.slots == AT_ONCE, serving.self_check.reason
        async with running(tmp_path) as steward:
            try:
                serves = await served(steward, serving, SERVES)
            finally:
                await serving.close()
            auditing = await GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", slots=1, context_tokens=64))
            try:
                return serves, [await verdict_of(steward, auditing, serve) for serve in serves]
            finally:
                await auditing.close()

    serves, verdicts = runner.run(main())
    assert {serve.receipt.outcome.finish for serve in serves} == {"stop", "length", "cancelled"}
    assert len({serve.tokens for serve in serves}) > SERVES / 4, "outputs that hardly vary prove little"
    told = Counter((verdict.kind, verdict.method, verdict.prompt, verdict.output) for verdict in verdicts)
    assert told == {("verified", "prefill", "checked", "matches"): SERVES}


class Dishonest:
    """An engine that says it is `engine`, serves with `other`, and passes what that made through `change`."""

    def __init__(
        self, engine: GgufEngine, other: GgufEngine, change: Callable[[Served], Served] = lambda served: served
    ) -> None:
        self._engine, self._other, self._change = engine, other, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        served = self._change(await self._other.serve(request, prompt, Client()))
        for token in served.tokens:
            sink.put(token)
        said = served.outcome.to_map() | {"weights_digest": self._engine.weights_digest}
        return replace(served, outcome=ServeOutcome.from_map(said))


def ending_after(kept: int) -> Callable[[Served], Served]:
    """The output is cut there and called whole."""

    def change(served: Served) -> Served:
        tokens = served.tokens[:kept]
        told = {"finish": "stop", "tokens_out": len(tokens), "tokens_accepted": len(tokens)}
        return replace(
            served, tokens=tokens, margins=None, outcome=ServeOutcome.from_map(served.outcome.to_map() | told)
        )

    return change


def padded(served: Served) -> Served:
    """Ids that no model made, counted as made."""
    tokens = (*served.tokens[:10], *served.tokens[:1] * 5)
    told = {"tokens_out": len(tokens), "tokens_accepted": len(tokens), "finish": "stop"}
    return replace(served, tokens=tokens, margins=None, outcome=ServeOutcome.from_map(served.outcome.to_map() | told))


@pytest.fixture(scope="module")
def engines(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GgufEngine, GgufEngine]]:
    folder = tmp_path_factory.mktemp("models")
    paths = [write_tiny_gguf(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]
    named, other = (runner.run(GgufEngine.start(GgufConfig(path, "tiny", slots=1))) for path in paths)
    yield named, other
    for engine in (named, other):
        runner.run(engine.close())


def verdicts_on(
    runner: asyncio.Runner, folder: Path, engine: GgufEngine, dishonest: Dishonest, count: int
) -> list[Verdict]:
    async def main() -> list[Verdict]:
        async with running(folder) as steward:
            verdicts = []
            for number, sampling in zip(range(count), itertools.cycle([{}, SEEDED | {"seed": 5}]), strict=False):
                ids = await engine.encode(f"question {number}", special=False)
                serve = await sealed(steward, dishonest, ids, 24, Client(), ignore_eos=True, **sampling)  # type: ignore[arg-type]
                verdicts.append(await verdict_of(steward, engine, serve))
            return verdicts

    return runner.run(main())


def test_a_model_swapped_behind_the_stewards_back_is_diverged_each_time(
    runner: asyncio.Runner, tmp_path: Path, engines: tuple[GgufEngine, GgufEngine]
) -> None:
    named, other = engines
    verdicts = verdicts_on(runner, tmp_path, named, Dishonest(named, other), 20)
    assert {(verdict.kind, verdict.row) for verdict in verdicts} == {("diverged", 15)}
    assert all(verdict.margin is not None and verdict.margin > 0 for verdict in verdicts)


@pytest.mark.parametrize("kept", [1, 12, 23])
def test_an_output_cut_short_is_diverged_where_it_was_cut(
    runner: asyncio.Runner, tmp_path: Path, engines: tuple[GgufEngine, GgufEngine], kept: int
) -> None:
    named, _ = engines
    verdicts = verdicts_on(runner, tmp_path, named, Dishonest(named, named, ending_after(kept)), 4)
    assert {(verdict.row, verdict.first_difference, verdict.served) for verdict in verdicts} == {(15, kept, None)}


def test_counts_inflated_by_ids_that_nobody_made_are_diverged(
    runner: asyncio.Runner, tmp_path: Path, engines: tuple[GgufEngine, GgufEngine]
) -> None:
    named, _ = engines
    verdicts = verdicts_on(runner, tmp_path, named, Dishonest(named, named, padded), 4)
    assert {(verdict.kind, verdict.row) for verdict in verdicts} == {("diverged", 15)}
    assert all((verdict.first_difference or 0) >= 10 for verdict in verdicts)
