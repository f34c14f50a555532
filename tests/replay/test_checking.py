"""Row 8: an output that is opened and checked in one pass. What a check cannot decide, decoding decides."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mesh.engine.protocol import CheckResult, Difference, can_check
from mesh.engine.reference import ReferenceEngine
from mesh.errors import BadRequest, EngineFailed
from mesh.replay.replayer import replay
from mesh.schema.request import ServeRequest
from tests.replay.sealing import KEY, Case, Playing, Sink, changed_at, retold, serve, told


class Checking(Playing):
    """Holds an output against the stream that the reference engine makes. `says(result)` is what it tells of it."""

    def __init__(self, says=lambda result: result, shown=lambda run, made: made, unable: str | None = None) -> None:
        super().__init__(shown)
        self.says, self.unable = says, unable
        self.checks = 0

    def undecidable(self, request: ServeRequest) -> str | None:
        return self.unable

    async def check(
        self, request: ServeRequest, prompt: Sequence[int], output: Sequence[int], *, cut: bool = False
    ) -> CheckResult:
        self.checks += 1
        made = await ReferenceEngine().serve(request, prompt, Sink(len(output) if cut else None))
        for at, expected in enumerate(made.tokens):
            served = output[at] if at < len(output) else None
            if served != expected:
                return self.says(CheckResult("differs", at + 1, (Difference(at, served, expected),)))
        finish = None if cut else made.outcome.finish
        return self.says(CheckResult("agreed", len(output), (), finish, None if cut else len(output)))


def test_row_8_opened_output_that_is_agreed_with():
    engine = Checking()
    assert can_check(engine)
    verdict = serve().replay(engine)
    assert told(verdict) == ("verified", 8, None, None)
    assert (verdict.method, verdict.prompt, verdict.output, verdict.ending) == ("prefill", "checked", "matches", None)
    assert (verdict.exit_code, engine.checks, engine.runs) == (0, 1, 0)


def test_row_8_cut_serve_is_checked_to_its_last_id():
    engine = Checking()
    verdict = serve(cut=5).replay(engine)
    assert (told(verdict)[:2], verdict.ending, engine.runs) == (("verified", 8), "cut", 0)


def test_row_8_serve_that_was_cut_before_its_first_id():
    assert serve(cut=0).replay(Checking()).row == 8


def test_row_8_is_not_asked_where_nothing_is_opened():
    engine = Checking()
    assert serve().disclosing(output=None).replay(engine).row == 10
    assert engine.checks == 0


def _by_decoding(case: Case, engine: Checking) -> tuple[str, int]:
    verdict = asyncio.run(replay(case.envelope, case.disclosure, engine, {KEY.public}, by="decode"))
    return verdict.method, verdict.row


def test_row_8_is_passed_over_on_demand():
    engine = Checking()
    assert _by_decoding(serve(), engine) == ("decode", 10)
    assert engine.checks == 0


def test_output_that_a_check_disagrees_with_is_decoded():
    engine = Checking()
    falsified = serve(committed=changed_at(4, serve().output))
    verdict = falsified.replay(engine)
    assert (verdict.row, verdict.first_difference, engine.checks, engine.runs) == (15, 4, 1, 2)


def test_check_that_disagrees_with_an_honest_serve_is_overruled():
    difference = Difference(2, 1, 2, 0.0)
    engine = Checking(lambda result: CheckResult("differs", result.compared, (difference,)))
    assert told(serve().replay(engine)) == ("verified", 10, None, None)


@pytest.mark.parametrize(
    "says",
    [
        lambda result: CheckResult("undecided", reason="no width"),
        lambda result: replace(result, compared=result.compared - 1),
        lambda result: replace(result, differences=(Difference(0, 1, 2),)),
        lambda result: replace(result, finish="cancelled"),
        lambda result: replace(result, finish=None),
    ],
)
def test_check_that_decides_nothing_is_followed_by_decoding(says):
    engine = Checking(says)
    assert told(serve().replay(engine)) == ("verified", 10, None, None)
    assert (engine.checks, engine.runs) == (1, 1)


def test_check_that_calls_it_length_before_max_tokens_decides_nothing():
    shown = lambda run, made: retold(made, made.tokens[:5], finish="stop")  # noqa: E731
    case = serve(Playing(shown))
    says = lambda result: CheckResult("agreed", 5, (), "length", 5)  # noqa: E731
    assert case.replay(Checking(says, shown)).row == 10


@pytest.mark.parametrize("error", [EngineFailed("died"), BadRequest("died")])
def test_check_that_fails_is_followed_by_decoding(error):
    def says(result):
        raise error

    assert serve().replay(Checking(says)).row == 10


def test_engine_that_says_it_can_decide_nothing_is_not_asked():
    engine = Checking(unable="no width")
    assert serve().replay(engine).row == 10
    assert engine.checks == 0


def test_receipt_that_lies_about_how_it_ended_is_diverged_all_the_same():
    assert told(serve().claiming(outcome={"finish": "stop"}).replay(Checking())) == ("diverged", 12, None, "finish")
    fewer = serve().claiming(outcome={"tokens_accepted": 3})
    assert told(fewer.replay(Checking())) == ("diverged", 12, None, "tokens_accepted")
