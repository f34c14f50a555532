"""A score counts what an engine would have chosen after the served tokens, and says that it is no verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mesh.engine.protocol import CheckResult, Difference, Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.errors import EngineFailed, SchemaError
from mesh.replay import score as module
from mesh.replay.score import Mismatch, Score, score
from mesh.replay.verdict import Verdict, not_replayable, verified
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import Sampling, ServeRequest
from tests.replay.sealing import KEY, Case, make_request, serve

NOT_CLAIMED = not_replayable(7, "not-claimed")


class Following(ReferenceEngine):
    """One whose next id is the length of what it was given: so it goes on from anything. At `other` it says 999, with
    a margin of 0.5; it ends at `end`, and fails from `broken` on."""

    def __init__(self, *other: int, end: int | None = None, broken: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.other, self.end, self.broken = other, end, broken
        self.asked: list[int] = []

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self.asked.append(len(prompt))
        if self.broken is not None and len(prompt) >= self.broken:
            raise EngineFailed("broken")
        made: list[int] = []
        finish = "length"
        while len(made) < request.max_tokens:
            at = len(prompt) + len(made)
            made.append(999 if at in self.other else at)
            if at == self.end:
                finish = "stop"
                break
        for token in made:
            sink.put(token)
        outcome = ServeOutcome.of(
            finish=finish, counted_by="engine", tokens_in=len(prompt), tokens_out=len(made),
            **({} if self.weights_digest is None else {"weights_digest": self.weights_digest}),
        )  # fmt: skip
        return Served(tuple(made), outcome, tuple(0.5 for _ in made))


PAYLOAD = list(b"hello")
START = len(PAYLOAD)


def case(**changes: Any) -> Case:
    request = make_request(prompt="hello", max_tokens=10, **changes)
    return serve(Following(), request, payload=PAYLOAD)


def scored(case: Case, engine: ReferenceEngine, verdict: Verdict = NOT_CLAIMED) -> Score | None:
    sealed = verify(case.envelope, RECEIPT_TYPE, {KEY.public})
    return asyncio.run(score(sealed, case.disclosure, engine, verdict))


def test_an_engine_that_chooses_the_same_has_all_of_them_in_one_run() -> None:
    engine = Following()
    assert scored(case(), engine) == Score(10, 10, True, ())
    assert engine.asked == [START]


def test_a_mismatch_is_placed_with_its_margin_and_what_follows_is_compared_after_the_served_token() -> None:
    engine = Following(START + 3, START + 7)
    assert scored(case(), engine) == Score(
        10, 8, True, (Mismatch(3, START + 3, 999, 0.5), Mismatch(7, START + 7, 999, 0.5))
    )
    assert engine.asked == [START, START + 4, START + 8]


def test_a_mismatch_at_the_last_token_ends_it() -> None:
    assert scored(case(), Following(START + 9)) == Score(10, 9, True, (Mismatch(9, START + 9, 999, 0.5),))


def test_an_engine_that_would_have_ended_is_a_mismatch_without_a_token() -> None:
    found = scored(case(), Following(end=START + 4))
    assert found is not None
    assert found.mismatches == (Mismatch(5, START + 5, None, None),)
    assert (found.tokens, found.matching) == (10, 9)


def test_an_engine_that_disagrees_all_the_time_is_asked_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_RESTARTS", 3)
    engine = Following(*range(START, START + 10))
    found = scored(case(), engine)
    assert found is not None
    assert (found.tokens, found.matching, found.whole, len(engine.asked)) == (4, 0, False, 4)


def test_an_engine_that_fails_leaves_what_was_compared_until_then() -> None:
    assert scored(case(), Following(broken=0)) is None
    found = scored(case(), Following(START + 3, broken=START + 4))
    assert found == Score(4, 3, False, (Mismatch(3, START + 3, 999, 0.5),))


class Checking(Following):
    """One that compares a known output in one pass, and says `result` of it."""

    def __init__(self, result: CheckResult | Exception) -> None:
        super().__init__()
        self.result = result

    def undecidable(self, request: ServeRequest) -> str | None:
        return "never the same bits"

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool = False
    ) -> CheckResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_an_engine_that_checks_outputs_scores_in_one_pass() -> None:
    differences = (Difference(3, START + 3, 999, 0.25), Difference(7, START + 7, None, float("nan")))
    engine = Checking(CheckResult("undecided", 10, differences, reason="never the same bits"))
    assert scored(case(), engine) == Score(
        10, 8, True, (Mismatch(3, START + 3, 999, 0.25), Mismatch(7, START + 7, None, None))
    )
    assert engine.asked == []
    part = Checking(CheckResult("undecided", 4, (), reason="never the same bits"))
    assert scored(case(), part) == Score(4, 4, False, ())


@pytest.mark.parametrize("result", [CheckResult("undecided", reason="no"), EngineFailed("broken")])
def test_a_check_that_compares_nothing_leaves_it_to_steps(result: CheckResult | Exception) -> None:
    engine = Checking(result)
    assert scored(case(), engine) == Score(10, 10, True, ())
    assert engine.asked == [START]


@pytest.mark.parametrize(
    "verdict",
    [
        verified(10, "decode", prompt="checked", output="matches", cut=False),
        not_replayable(1, "other-request"), not_replayable(4, "no-opening"), not_replayable(6, "other-weights"),
        not_replayable(9, "engine-failed"),
    ],
    ids=lambda verdict: str(verdict.row),
)  # fmt: skip
def test_what_was_judged_or_cannot_be_compared_has_no_score(verdict: Verdict) -> None:
    engine = Following()
    assert scored(case(), engine, verdict) is None
    assert engine.asked == []


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature_u": 1, "seed": 1}, {"frequency_penalty_u": 1}, {"presence_penalty_u": -1},
        {"repetition_penalty_u": 1_000_001}, {"grammar": bytes(32)},
    ],
)  # fmt: skip
def test_what_depends_on_more_than_the_tokens_before_has_no_score(sampling: dict[str, Any]) -> None:
    fields = Sampling.greedy().to_map() | sampling
    assert scored(case(sampling=Sampling.of(**fields)), Following()) is None


def test_other_weights_an_undisclosed_or_a_changed_output_have_no_score() -> None:
    engine = Following()
    other = Following(weights_digest=ContentId(bytes(32)))
    assert scored(case(), other) is None
    assert scored(case().disclosing(output=None), engine) is None
    assert scored(case().disclosing(output=bytes(40)), engine) is None
    sealed = verify(case().envelope, RECEIPT_TYPE, {KEY.public})
    assert asyncio.run(score(sealed, None, engine, NOT_CLAIMED)) is None


def test_a_score_says_that_it_is_no_verdict_and_comes_back() -> None:
    found = Score(4, 3, False, (Mismatch(3, 8, 999, 0.5), Mismatch(2, 1, None, None)))
    told = json.loads(json.dumps(found.to_json()))
    assert told["not_a_verdict"] is True
    assert Score.from_json(told) == found
    assert replace(found, whole=True) != found
    for broken in ({}, told | {"mismatches": 3}, told | {"mismatches": [{}]}):
        with pytest.raises(SchemaError):
            Score.from_json(broken)
