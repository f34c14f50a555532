"""`mesh audit` on a real engine: an honest steward's serves verify, a dishonest one's do not, whatever he signs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import Served, ServingEngine, TokenSink
from mesh.schema.ids import steward_text
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_ids
from mesh.steward import keys
from mesh.steward.serves import SealedServe
from tests.support.stewards import KEY, Client, request, running
from tests.support.tiny_gguf import write_tiny_gguf

TRUST = steward_text(KEY.public)
YEAR_NS = 365 * 24 * 3600 * 10**9
SERVES = 8

pytestmark = pytest.mark.deep


class Swapped:
    """Another model's serves under the first one's digest: what a dishonest steward would sign."""

    def __init__(self, named: GgufEngine, ran: GgufEngine) -> None:
        self._named, self._ran = named, ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._named, name)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        served = await self._ran.serve(request, prompt, sink)
        told = served.outcome.to_map() | {"weights_digest": self._named.weights_digest}
        return replace(served, outcome=type(served.outcome).from_map(told))


class Modest:
    """An engine that claims nothing."""

    def __init__(self, engine: GgufEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def deterministic(self, request: ServeRequest) -> bool:
        return False


async def serve_day(folder: Path, engine: ServingEngine) -> None:
    """Serves greedy and seeded, two at a time, one of three called off; kept, so that the ledger discloses them."""
    keys.load_or_create(folder / "key", random=lambda _: KEY.seed)
    async with running(folder, keep_ns=YEAR_NS) as steward:

        async def one(number: int) -> None:
            prompt = [10 + number, *range(20, 36)]
            sampling = Sampling.greedy().to_map() | {"ignore_eos": True}
            if number % 2:
                sampling |= {"temperature_u": 900_000, "seed": number, "top_k": 40}
            wanted = request(
                max_tokens=24, prompt_hash=prompt_hash_of_ids(prompt, bytes(32)), prompt_tokens=len(prompt),
                sampling=sampling,
            )  # fmt: skip
            client = Client(leave_after=9 if number % 3 == 2 else None)
            admitted = await steward.admit(wanted, [engine], caller="caller")
            done = await steward.serve(admitted, prompt, client, serve_id=steward.new_serve_id())
            assert isinstance(done, SealedServe)

        for number in range(0, SERVES, 2):
            await asyncio.gather(one(number), one(number + 1))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """State directories of the same day: served honestly, by a swapped model, and without a claim."""
    folder = tmp_path_factory.mktemp("gguf")
    model, other = write_tiny_gguf(folder / "tiny.gguf"), write_tiny_gguf(folder / "other.gguf", seed=5)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            engines = []
            for path in (model, other):
                engine = await GgufEngine.start(GgufConfig(path, "tiny"))
                stack.push_async_callback(engine.close)
                engines.append(engine)
            named, ran = engines
            for name, served_by in (("honest", named), ("swapped", Swapped(named, ran)), ("modest", Modest(named))):
                (folder / name).mkdir(mode=0o700)
                await serve_day(folder / name, served_by)

    asyncio.run(main())
    return {name: folder / name for name in ("honest", "swapped", "modest")} | {"model": model}


def audit(mesh, states: dict[str, Path], name: str, *flags: str) -> tuple[int, Any]:
    result = mesh("audit", states[name], "--trust", TRUST, "--gguf", states["model"], *flags, "--json")
    return result.code, result.json


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_honest_day_verifies(mesh, states: dict[str, Path], jobs: str) -> None:
    code, told = audit(mesh, states, "honest", "--jobs", jobs)
    assert (code, told["faults"], told["replays"]["verdicts"]) == (0, [], {"verified": SERVES})
    assert sum(told["replays"]["methods"].values()) == SERVES
    assert told["stewards"][0]["incomplete"] > 0
    assert told["disclosures"] == {"ledger": SERVES}


def test_a_swapped_model_is_caught_in_every_receipt_that_is_drawn(mesh, states: dict[str, Path]) -> None:
    code, told = audit(mesh, states, "swapped", "--sample", "5", "--seed", "07" * 32)
    assert (code, told["faults"], told["replays"]["verdicts"]) == (10, [], {"diverged": 5})
    assert [one["seq"] for one in told["replays"]["diverged"]] == told["plan"]["strata"][0]["drawn"]


def test_what_claims_nothing_has_a_score_and_no_verdict(mesh, states: dict[str, Path]) -> None:
    code, told = audit(mesh, states, "modest", "--score")
    assert (code, told["replays"]["reasons"]) == (11, {"not-claimed": SERVES})
    model = told["scores"]["models"]["tiny"]
    assert (model["receipts"], model["share"]) == (SERVES // 2, "1.0")  # the greedy ones
    assert model["matching"] == model["tokens"] > 0
    assert audit(mesh, states, "modest")[1]["scores"]["models"] == {}
