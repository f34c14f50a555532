"""What backends cost, learned from receipts: nothing is learned from what says nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineUnavailable, NoCandidate, Overloaded
from mesh.schema.energy import Energy, EnergySource
from mesh.schema.ids import ContentId
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.steward.admission import Offer, admit
from mesh.steward.costs import Costs
from tests.support.meters import SteadyMeter
from tests.support.stewards import PROMPT, Client, request, running

WEIGHTS = ContentId(b"\x07" * 32)


def receipt(uj: int | None, engine: ReferenceEngine, *, tokens_in: int = 2, tokens_out: int = 8) -> Receipt:
    energy = (
        Energy.of(basis="absent", sources=[], span_ns=1, reason="no-meter")
        if uj is None
        else Energy.of(
            basis="modelled", span_ns=1, uj=uj, epoch=bytes(16),
            sources=[EnergySource.of(domain="d", method="m", uj=uj, resolution_ns=1)],
        )
    )  # fmt: skip
    return Receipt.of(
        v="mesh/1", steward=bytes(32), seq=0, serve_id=bytes(16), request_id=bytes(32), prompt_hash=bytes(32),
        max_tokens=8, started_ns=1, ended_ns=2, energy=energy,
        engine=EngineBlock.of(
            backend_id=engine.backend_id, recipe_id=engine.recipe_id, fidelity=0, deterministic=True,
            settings_digest=bytes(32), process=bytes(16), weights_digest=engine.weights_digest,
        ),
        outcome=ServeOutcome.of(finish="length", counted_by="both", tokens_in=tokens_in, tokens_out=tokens_out),
    )  # fmt: skip


def test_cost_is_per_token_and_follows_slowly() -> None:
    costs, engine = Costs(), ReferenceEngine("a")
    assert costs.uj_per_token(engine) is None
    costs.learn(receipt(1000, engine))
    assert costs.uj_per_token(engine) == 100
    costs.learn(receipt(2000, engine))
    assert costs.uj_per_token(engine) == pytest.approx(110)


def test_receipts_without_a_figure_or_tokens_teach_nothing_and_a_figure_of_nought_does() -> None:
    costs, engine = Costs(), ReferenceEngine("a")
    costs.learn(receipt(None, engine))
    costs.learn(receipt(1000, engine, tokens_out=0))
    assert costs.uj_per_token(engine) is None
    costs.learn(receipt(0, engine))
    assert costs.uj_per_token(engine) == 0


def test_cost_falls_back_to_an_equal_backend_and_then_to_the_engines_own_estimate() -> None:
    costs = Costs()
    known = ReferenceEngine("a", weights_digest=WEIGHTS)
    twin = ReferenceEngine("b", weights_digest=WEIGHTS, est_uj_per_token=9)
    other = ReferenceEngine("c", weights_digest=ContentId(bytes(32)), est_uj_per_token=9)
    costs.learn(receipt(1000, known))
    assert [costs.uj_per_token(engine) for engine in (known, twin, other)] == [100, 100, 9]
    assert costs.learned(twin) is None
    assert costs.uj_per_token(ReferenceEngine("a")) is None  # other weights under the same name


class Stand:
    """The places of backends with loads by name; a load of 9 is full."""

    def __init__(self, **loads: float) -> None:
        self.loads = loads

    def __getitem__(self, name: str) -> At:
        return At(name, self.loads.get(name, 0), len(self.loads))


class At:
    full = False

    def __init__(self, name: str, load: float, retry_s: int) -> None:
        self.name, self.load, self.retry_s = name, load, retry_s

    def overloaded(self, caller: str) -> Overloaded | None:
        return Overloaded(f"{self.name} is full", retry_after_s=self.retry_s) if self.load == 9 else None


def chosen(engines: list[ReferenceEngine], costs: Costs, stand: Stand, **fields: Any) -> str:
    offers = [Offer(request(**fields), engine, place=stand[engine.recipe_id]) for engine in engines]
    return asyncio.run(admit(offers, caller="tests", costs=costs)).engine.recipe_id


def test_least_energy_is_chosen_and_load_decides_between_those_that_cost_about_the_same() -> None:
    costs = Costs()
    a, b, c = (ReferenceEngine(name, weights_digest=ContentId(name.encode() * 32)) for name in "abc")
    for engine, uj in ((a, 1000), (b, 1050), (c, 3000)):
        costs.learn(receipt(uj, engine))
    unknown = ReferenceEngine("unknown")
    everyone = [unknown, c, b, a]
    assert chosen(everyone, costs, Stand()) == "a"
    assert chosen(everyone, costs, Stand(a=2)) == "b"
    assert chosen(everyone, costs, Stand(a=2, b=3)) == "a"
    assert chosen(everyone, costs, Stand(a=9, b=9)) == "c"
    assert chosen(everyone, costs, Stand(a=9, b=9, c=9)) == "unknown"


def test_receipts_that_say_more_than_the_engine_bind_a_joule_ceiling() -> None:
    costs, engine = Costs(), ReferenceEngine("a", est_uj_per_token=5)
    assert chosen([engine], costs, Stand(), joule_ceiling_uj=50) == "a"
    costs.learn(receipt(1000, engine))
    with pytest.raises(NoCandidate, match="may cost 1000 uJ, the ceiling is 50 uJ"):
        chosen([engine], costs, Stand(), joule_ceiling_uj=50)
    silent = ReferenceEngine("b")
    costs.learn(receipt(50, silent))
    assert chosen([silent], costs, Stand(), joule_ceiling_uj=50) == "b"


def test_refusals_say_what_kept_each_backend_from_it() -> None:
    class Away(ReferenceEngine):
        async def ready(self) -> None:
            raise EngineUnavailable(f"{self.recipe_id} is away")

    away, full, small = Away("away"), ReferenceEngine("full"), ReferenceEngine("small", context_tokens=9)
    with pytest.raises(Overloaded, match=r"away: away is away; |full: full is full; small: .*holds 9") as busy:
        chosen([away, full, small], Costs(), Stand(full=9))
    assert busy.value.retry_after_s == 1
    with pytest.raises(EngineUnavailable, match=r"small: .*holds 9; away: away is away"):
        chosen([away, small], Costs(), Stand())
    with pytest.raises(EngineUnavailable, match=r"^away is away$"):
        chosen([away], Costs(), Stand())


def test_steward_learns_from_its_receipts_and_remembers_over_a_restart(folder: Path) -> None:
    engine = ReferenceEngine("a")

    async def main() -> tuple[float | None, float | None, float | None]:
        async with running(folder, meters=[SteadyMeter("a", 1000)]) as steward:
            before = steward.costs.uj_per_token(engine)
            for _ in range(3):
                admitted = await steward.admit(request(), [engine], caller="tests")
                await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
            learned = steward.costs.uj_per_token(engine)
        async with running(folder) as steward:
            return before, learned, steward.costs.uj_per_token(engine)

    before, learned, remembered = asyncio.run(main())
    assert before is None
    assert learned is not None
    assert remembered == learned > 0
