from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineUnavailable, NoCandidate
from mesh.schema.outcome import Fidelity
from mesh.steward.admission import Offer, admit, worst_case_uj
from mesh.steward.costs import Costs
from tests.support.stewards import request


def admitted(candidates: list[Any], **fields: Any) -> Any:
    asked = request(**fields)
    return asyncio.run(admit([Offer(asked, engine) for engine in candidates], caller="tests"))


@pytest.mark.parametrize(
    ("engine", "fields", "reason"),
    [
        ({}, {"model": "other"}, "serves 'a', the request asks for 'other'"),
        ({}, {"fidelity_floor": 2}, "fidelity F0 is below the floor F2"),
        ({"context_tokens": 9}, {"max_tokens": 8}, "10 tokens, the context holds 9"),
        ({}, {"joule_ceiling_uj": 1}, "cannot estimate its cost"),
        ({"est_uj_per_token": 5}, {"joule_ceiling_uj": 49}, "may cost 50 uJ, the ceiling is 49 uJ"),
        ({}, {"decision": bytes(32)}, "decision"),
    ],
)
def test_refusal_names_the_backend_and_its_reason(engine: Any, fields: Any, reason: str) -> None:
    backend = ReferenceEngine("a", **engine)
    with pytest.raises(NoCandidate) as caught:
        admitted([backend], **fields)
    assert reason in caught.value.reasons["a"]
    assert reason in str(caught.value)


def test_bounds_themselves_are_admitted() -> None:
    engine = ReferenceEngine("a", est_uj_per_token=5, context_tokens=10, fidelity=Fidelity.F2)
    found = admitted([engine], max_tokens=8, joule_ceiling_uj=50, fidelity_floor=2, model="a")
    assert found.engine is engine
    assert found.est_uj == 50


def test_request_may_ask_for_a_backend_by_what_else_it_answers_to() -> None:
    engine = ReferenceEngine("a")
    offer = Offer(request(model="any"), engine, frozenset(("any", "other")))
    assert asyncio.run(admit([offer], caller="tests")).engine is engine
    with pytest.raises(NoCandidate, match="serves 'a', the request asks for 'any'"):
        asyncio.run(admit([offer.but(aliases=("other",))], caller="tests"))


def test_backend_that_was_just_asked_is_not_asked_again() -> None:
    class Away(ReferenceEngine):
        async def ready(self) -> None:
            raise EngineUnavailable("away")

    offer = Offer(request(), Away("a"))
    with pytest.raises(EngineUnavailable, match=r"^away$"):
        asyncio.run(admit([offer], caller="tests"))
    assert asyncio.run(admit([offer.but(asked=True)], caller="tests")).caller == "tests"


def test_cheapest_is_chosen_and_unknown_cost_comes_last() -> None:
    unknown, dear, cheap = (ReferenceEngine("a", est_uj_per_token=cost) for cost in (None, 9, 2))
    assert admitted([unknown, dear, cheap]).engine is cheap
    assert admitted([unknown, dear]).engine is dear
    assert admitted([unknown]).est_uj is None


def test_free_is_cheaper_than_anything() -> None:
    free, cheap = ReferenceEngine("a", est_uj_per_token=0), ReferenceEngine("a", est_uj_per_token=1)
    assert admitted([cheap, free]).engine is free


def test_no_backends_is_said() -> None:
    with pytest.raises(NoCandidate, match="there are no backends"):
        admitted([])


def test_worst_case_counts_the_prompt_and_every_token() -> None:
    assert worst_case_uj(request(max_tokens=100), ReferenceEngine(est_uj_per_token=3), Costs()) == 306
