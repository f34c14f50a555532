"""A recipe leaves the dark by a forward over its hosts, and by nothing less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.engine.vllm import VllmEngine
from mesh.errors import EngineUnsupported, IdentityChanged, RecipeNotCertified
from mesh.ledger import Ledger
from mesh.steward.certification import PROMPTS, TOKENS, certify
from tests.support.fake_vllm import FakeVllm, running
from tests.support.stewards import KEY
from tests.support.vllm_engines import engine_on
from tests.support.vllm_route import PARTED, Halves, write_halves

TOLD: dict[str, Any] = {"session": "session-1", "at_ns": 5}


@pytest.fixture
def halves(tmp_path: Path) -> Halves:
    return write_halves(tmp_path)


def on(halves: Halves, folder: Path, test: Callable[[FakeVllm, VllmEngine, Ledger], Awaitable[None]]) -> None:
    async def main() -> None:
        with Ledger.open(folder / "ledger.sqlite", steward=KEY.public) as ledger:
            async with (
                running(fingerprint=PARTED, ranks=halves.reports()) as fake,
                engine_on(fake, halves.whole, route=True) as engine,
            ):
                await test(fake, engine, ledger)

    asyncio.run(main())


def status(ledger: Ledger, engine: VllmEngine) -> str:
    assert engine.shard_route is not None
    return ledger.reader.registry().status(engine.shard_route.shards[0]).status


def test_forward_over_the_hosts_certifies(halves, tmp_path):
    async def test(fake: FakeVllm, engine: VllmEngine, ledger: Ledger) -> None:
        assert status(ledger, engine) == "unknown"
        asked = len(fake.bodies)
        told = await certify(engine, ledger, **TOLD)
        assert len(fake.bodies) == asked + PROMPTS
        assert len({tuple(body["prompt"]) for body in fake.bodies[asked:]}) == PROMPTS
        assert told.evidence is not None
        assert told.evidence.tokens_generated == PROMPTS * TOKENS
        assert told.evidence.node_ids == ("10.211.0.1", "10.211.0.2")
        assert told.evidence.shard_ranges == ((0, 1), (1, 2))
        assert (told.evidence.route_session_id, told.evidence.certified_at_ns) == ("session-1", 5)
        assert not told.evidence.synthetic
        assert status(ledger, engine) == "certified"

    on(halves, tmp_path, test)


def test_unsplit_model_has_to_give_the_same(halves, tmp_path):
    async def test(fake: FakeVllm, engine: VllmEngine, ledger: Ledger) -> None:
        async with running(numbers="other") as other, engine_on(other, halves.whole) as against:
            with pytest.raises(RecipeNotCertified, match="recipe 'tiny': 0 of 4 outputs are those of the unsplit"):
                await certify(engine, ledger, against=against, **TOLD)
        assert status(ledger, engine) == "dark"
        async with running() as same, engine_on(same, halves.whole) as against:
            assert (await certify(engine, ledger, against=against, **TOLD)).status == "certified"

    on(halves, tmp_path, test)


def test_hosts_that_change_under_the_forward_certify_nothing(halves, tmp_path):
    async def test(fake: FakeVllm, engine: VllmEngine, ledger: Ledger) -> None:
        assert fake.ranks is not None
        fake.ranks[0]["host"] = fake.ranks[1]["host"] = "renamed"  # nobody's numbers
        fake.ranks[1]["address"] = "10.211.0.9"
        with pytest.raises(IdentityChanged, match="compute or hold other than before"):
            await certify(engine, ledger, **TOLD)
        assert status(ledger, engine) == "dark"

    on(halves, tmp_path, test)


def test_engine_of_one_host_is_nothing_to_certify(tmp_path):
    async def main() -> None:
        with Ledger.open(tmp_path / "ledger.sqlite", steward=KEY.public) as ledger:
            with pytest.raises(EngineUnsupported, match="'reference': no route of shards"):
                await certify(ReferenceEngine(), ledger, **TOLD)
            assert ledger.reader.registry().known == ()

    asyncio.run(main())
