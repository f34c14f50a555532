"""The decision table from row 9 on, where the replayer's engine runs, and cancelled serves."""

import asyncio
import dataclasses
import math
from collections.abc import Sequence

import pytest

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.errors import (
    BadRequest,
    EngineFailed,
    WeightsChanged,
)
from mesh.schema.ids import ContentId
from mesh.schema.request import ServeRequest, pack_ids
from tests.replay.sealing import PROMPT, Playing, Renamed, changed_at, make_request, retold, serve, told

W1 = ContentId.of_bytes(b"one")

# Row 9: a run that shows nothing.


class Failing(Playing):
    """Fails in its run number `at`."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__(lambda run, made: retold(made, changed_at(0, made.tokens)))
        self.at, self.error = at, error

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        if self.runs == self.at:
            raise self.error
        return await super().serve(request, prompt, sink)


@pytest.mark.parametrize("error", [EngineFailed("died"), WeightsChanged("died"), BadRequest("died")])
def test_row_9_engine_that_fails(error):
    verdict = serve().replay(Failing(0, error))
    assert told(verdict) == ("not-replayable", 9, "engine-failed", None)
    assert "died" in verdict.detail


def test_row_9_engine_that_is_closed():
    engine = ReferenceEngine()
    asyncio.run(engine.close())
    assert serve().replay(engine).reason == "engine-failed"


class Reluctant(ReferenceEngine):
    """Would serve if it were made to, but says that it should not be."""

    def refusal(self, request: ServeRequest) -> str | None:
        return "stop: not here"

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        return await ReferenceEngine().serve(request, prompt, sink)


class Stale(Reluctant):
    def refusal(self, request: ServeRequest) -> str | None:
        return None

    async def ready(self) -> None:
        raise WeightsChanged("the files were replaced")


@pytest.mark.parametrize(("engine", "why"), [(Reluctant(), "stop: not here"), (Stale(), "the files were replaced")])
def test_row_9_engine_that_should_not_serve_is_not_run(engine, why):
    verdict = serve().replay(engine)
    assert told(verdict) == ("not-replayable", 9, "engine-failed", None)
    assert verdict.detail.endswith(why)


@pytest.mark.parametrize(
    "outcome",
    [
        {"finish": "cancelled"},
        {"finish": "engine-error"},
        {"finish": "length", "tokens_out": 5},
        {"weights_digest": bytes(32)},
    ],
)
def test_row_9_engine_that_breaks_a_promise(outcome):
    engine = Playing(lambda run, made: retold(made, made.tokens, **outcome))
    assert told(serve().replay(engine)) == ("not-replayable", 9, "engine-failed", None)


def test_row_9_engine_that_ends_early_and_calls_it_length():
    engine = Playing(lambda run, made: retold(made, made.tokens[:5]))
    assert serve().replay(engine).reason == "engine-failed"


def test_row_9_engine_that_streams_other_ids_than_it_returns():
    class TwoFaced(ReferenceEngine):
        async def serve(self, request, prompt, sink):
            served = await super().serve(request, prompt, sink)
            return dataclasses.replace(served, tokens=served.tokens[::-1])

    assert serve().replay(TwoFaced()).reason == "engine-failed"


def test_row_9_unattributed_while_nothing_is_opened():
    falsified = serve(committed=changed_at(4, serve().output))
    assert told(falsified.disclosing(output=None).replay()) == ("not-replayable", 9, "unattributed", None)
    wrong = falsified.disclosing(output=pack_ids(serve().output))
    assert told(wrong.replay()) == ("not-replayable", 9, "unattributed", None)


def test_row_9_wrong_payload_with_the_honest_output():
    other = pack_ids([1] * len(PROMPT.encode()))
    assert told(serve().disclosing(payload=other).replay()) == ("not-replayable", 9, "unattributed", None)


def test_row_9_forged_opening():
    assert told(serve().disclosing(opening=bytes(32)).replay()) == ("not-replayable", 9, "unattributed", None)


# Rows 11 and 12: the second run.


def test_row_11_second_run_fails():
    falsified = serve(committed=changed_at(4, serve().output))
    assert told(falsified.replay(Failing(1, EngineFailed("died")))) == ("not-replayable", 11, "engine-failed", None)


def test_row_11_second_run_differs():
    engine = Playing(lambda run, made: retold(made, changed_at(run, made.tokens)))
    assert told(serve().replay(engine)) == ("not-replayable", 11, "unstable", None)
    assert engine.runs == 2


def test_row_11_second_run_ends_otherwise():
    finishes = ("length", "stop")
    engine = Playing(lambda run, made: retold(made, changed_at(0, made.tokens), finish=finishes[run]))
    assert serve().replay(engine).reason == "unstable"


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize(
    ("field", "outcome"), [("finish", {"finish": "stop"}), ("tokens_accepted", {"tokens_accepted": 11})]
)
def test_row_12_ending_that_the_re_run_disproves(field, outcome, output):
    case = serve().claiming(outcome=outcome)
    case = case if output else case.disclosing(output=None)
    assert told(case.replay()) == ("diverged", 12, None, field)


@pytest.mark.parametrize(
    ("field", "outcome"),
    [
        ("tokens_out", {"tokens_out": 11}),
        ("tokens_in", {"tokens_in": 9}),
        ("tokens_delivered", {"tokens_delivered": 13}),
    ],
)
def test_row_12_inflated_counts_are_found_without_the_output(field, outcome):
    assert told(serve().claiming(outcome=outcome).disclosing(output=None).replay()) == ("diverged", 12, None, field)


# Rows 13 to 15: other ids.


@pytest.mark.parametrize("index", [0, 4, 11])
def test_row_15_falsified_serve_diverges_at_the_changed_id(index):
    honest = serve().output
    verdict = serve(committed=changed_at(index, honest)).replay()
    assert told(verdict) == ("diverged", 15, None, None)
    assert (verdict.first_difference, verdict.served, verdict.replayed) == (index, honest[index] ^ 1, honest[index])
    assert (verdict.margin, verdict.exit_code) == (None, 10)


def test_row_15_shortened_output_diverges_at_its_end():
    honest = serve().output
    verdict = serve(committed=honest[:9]).claiming(outcome={"finish": "stop", "tokens_accepted": 9}).replay()
    assert (verdict.row, verdict.first_difference, verdict.served, verdict.replayed) == (15, 9, None, honest[9])


def test_row_15_lengthened_output_diverges_where_the_re_run_stops():
    honest = serve().output
    engine = Playing(lambda run, made: retold(made, made.tokens[:7], finish="stop"))
    verdict = serve().replay(engine)
    assert (verdict.row, verdict.first_difference, verdict.served, verdict.replayed) == (15, 7, honest[7], None)


def test_row_13_nobody_names_the_weights():
    anonymous = Renamed("vllm/1/none/none/none/none")
    case = serve(anonymous, committed=changed_at(4, serve().output))
    assert told(case.replay(anonymous)) == ("not-replayable", 13, "unattributed", "weights_digest")
    assert serve(anonymous).replay(anonymous).row == 10


def test_row_13_does_not_hold_where_both_name_them():
    named = Renamed("vllm/1/none/none/none/none", weights_digest=W1)
    assert serve(named, committed=changed_at(4, serve().output)).replay(named).row == 15


def with_margins(*margins: float) -> Playing:
    return Playing(lambda run, made: dataclasses.replace(made, margins=margins))


def test_row_14_tie_at_the_first_difference():
    case = serve(committed=changed_at(1, serve().output))
    assert told(case.replay(with_margins(0.5, 0.0, 0.5))) == ("not-replayable", 14, "tie", None)


def test_row_14_tie_elsewhere_is_no_excuse():
    case = serve(committed=changed_at(1, serve().output))
    verdict = case.replay(with_margins(0.0, 0.25, 0.0))
    assert (verdict.row, verdict.margin) == (15, 0.25)


@pytest.mark.parametrize("margin", [math.nan, math.inf, -1.0])
def test_row_15_margin_that_is_no_distance_is_unknown(margin):
    verdict = serve(committed=changed_at(1, serve().output)).replay(with_margins(0.5, margin))
    assert (verdict.row, verdict.margin) == (15, None)


def test_row_15_margin_beyond_those_known_is_unknown():
    verdict = serve(committed=changed_at(2, serve().output)).replay(with_margins(0.5, 0.5))
    assert (verdict.row, verdict.margin) == (15, None)


def test_margins_that_vary_between_runs_of_the_same_ids_are_no_instability():
    engine = Playing(lambda run, made: dataclasses.replace(made, margins=(1.0, 0.5 + run)))
    verdict = serve(committed=changed_at(1, serve().output)).replay(engine)
    assert (verdict.row, verdict.margin) == (15, 0.5)


# Cancelled serves.


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_cut_serve_is_replayed_to_its_last_committed_id(cut):
    case = serve(None, make_request(max_tokens=100_000), cut=cut)
    for disclosed in (case, case.disclosing(output=None)):
        verdict = disclosed.replay()
        assert (verdict.row, verdict.kind, verdict.ending) == (10, "verified", "cut")


@pytest.mark.parametrize("cut", [0, 7])
def test_cut_serve_is_replayed_no_further(cut):
    made: list[int] = []

    class Watched(ReferenceEngine):
        async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
            served = await super().serve(request, prompt, sink)
            made.append(len(served.tokens))
            return served

    assert serve(None, make_request(max_tokens=100_000), cut=cut).replay(Watched()).row == 10
    assert made == [cut]


def test_cut_serve_on_an_engine_that_makes_more_than_asked():
    engine = Playing(lambda run, made: made)
    assert serve(cut=5).replay(engine).row == 10


def test_cut_serve_says_nothing_of_how_it_would_have_ended():
    # The re-run reaches the last committed id exactly as it stops.
    engine = Playing(lambda run, made: retold(made, made.tokens[:5], finish="stop"))
    verdict = serve(cut=5).replay(engine)
    assert (verdict.row, verdict.ending) == (10, "cut")


def test_cut_serve_that_was_whole_is_not_judged_by_its_ending():
    assert serve().claiming(outcome={"finish": "cancelled"}).replay().ending == "cut"


def test_cancelling_evades_nothing():
    honest = serve(cut=7).output
    verdict = serve(cut=7, committed=changed_at(6, honest)).replay()
    assert (verdict.row, verdict.first_difference, verdict.replayed) == (15, 6, honest[6])


def test_cut_serve_beyond_where_the_model_ends_diverges_there():
    honest = serve(cut=7).output
    engine = Playing(lambda run, made: retold(made, made.tokens[:5], finish="stop"))
    verdict = serve(cut=7).replay(engine)
    assert (verdict.row, verdict.first_difference, verdict.served, verdict.replayed) == (15, 5, honest[5], None)


def test_cut_serve_with_inflated_counts_diverges_once_opened():
    case = serve(cut=7).claiming(outcome={"tokens_out": 9})
    assert told(case.replay()) == ("diverged", 5, None, "tokens_out")
    assert told(case.disclosing(output=None).replay()) == ("not-replayable", 9, "unattributed", None)


def test_engine_that_stops_before_the_cut_fails():
    engine = Playing(lambda run, made: retold(made, made.tokens[:3], finish="cancelled"))
    assert serve(cut=7).replay(engine).reason == "engine-failed"


def test_cold_is_said_of_what_ran_and_of_nothing_else():
    class Cold(ReferenceEngine):
        runs_cold = True

    honest, false = serve(), serve(committed=changed_at(4, serve().output))
    assert (honest.replay(Cold()).row, honest.replay(Cold()).cache, honest.replay().cache) == (10, "cold", None)
    assert (false.replay(Cold()).row, false.replay(Cold()).cache) == (15, "cold")
    unran = honest.claiming(outcome={"tokens_in": 1}).replay(Cold())
    assert (unran.kind, unran.row, unran.cache) == ("diverged", 5, None)
    unattributed = false.disclosing(output=None).replay(Cold())
    assert (unattributed.kind, unattributed.row, unattributed.cache) == ("not-replayable", 9, None)
