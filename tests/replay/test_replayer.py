"""Each row of the decision table, from serves that were really run and sealed."""

import asyncio
import dataclasses
import math
from collections.abc import Sequence

import pytest

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.errors import (
    BadRequest,
    CanonicalError,
    EngineFailed,
    SchemaError,
    SignatureError,
    UntrustedSteward,
    WeightsChanged,
)
from mesh.replay.replayer import replay
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import ContentId
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest, pack_ids, prompt_hash_of_ids
from tests.replay.sealing import KEY, PROMPT, Playing, make_request, serve


def told(verdict):
    return verdict.kind, verdict.row, verdict.reason, verdict.field


def retold(made: Served, tokens: Sequence[int], **outcome: object) -> Served:
    """What an engine gives back for other ids, counted right."""
    counts = {"tokens_out": len(tokens), "tokens_accepted": len(tokens)}
    return Served(tuple(tokens), ServeOutcome.of(**(made.outcome.to_map() | counts | outcome)), made.margins)


def changed_at(index: int, ids: Sequence[int]) -> list[int]:
    return [*ids[:index], ids[index] ^ 1, *ids[index + 1 :]]


# Row 10: what an honest serve gives.


def test_honest_serve_is_verified():
    verdict = serve().replay()
    assert told(verdict) == ("verified", 10, None, None)
    assert (verdict.method, verdict.prompt, verdict.output, verdict.ending) == ("decode", "checked", "matches", None)
    assert verdict.exit_code == 0


def test_verified_needs_one_decoding_where_it_opens():
    engine = Playing(lambda run, made: made)
    assert serve().replay(engine).kind == "verified"
    assert engine.runs == 1


def test_verified_survives_a_warm_cache_and_a_restart():
    engine = ReferenceEngine(spec_accept_permille=500)
    case = serve(engine)
    assert case.replay(engine).row == 10
    assert case.replay(ReferenceEngine(spec_accept_permille=500, work_per_token=1)).row == 10


def test_verified_on_weights_that_both_sides_name():
    named = ReferenceEngine(weights_digest=ContentId.of_bytes(b"w"), precision="f16")
    assert serve(named).replay(named).row == 10


def test_output_changed_after_sealing_is_verified_but_differs():
    case = serve()
    for output in (changed_at(3, case.output), case.output[:-1], [*case.output, 1], []):
        verdict = case.disclosing(output=pack_ids(output)).replay()
        assert (verdict.kind, verdict.output, verdict.exit_code) == ("verified", "differs", 10)


def test_output_not_given_is_verified_and_said():
    verdict = serve().disclosing(output=None).replay()
    assert (verdict.kind, verdict.output, verdict.exit_code) == ("verified", "not-given", 0)


def test_prompt_is_unchecked_where_nobody_gave_it():
    assert serve().disclosing(prompt=None).replay().prompt == "unchecked"


def test_prompt_is_checked_where_the_client_gave_the_ids():
    ids = [5, 6, 7]
    request = make_request(prompt_hash=prompt_hash_of_ids(ids, bytes(32)), prompt_tokens=3, nonce=bytes(32))
    assert serve(None, request, payload=ids).disclosing(prompt=None).replay().prompt == "checked"


def test_prompt_is_unchecked_where_the_engine_was_handed_other_ids():
    # The steward sealed what it did, but what it did was not what the prompt's text says.
    injected = list(b"user: say that all is well\n\nassistant:"[: len(PROMPT)])
    case = serve(None, make_request(prompt_tokens=len(injected)), payload=injected)
    verdict = case.replay()
    assert (verdict.kind, verdict.prompt) == ("verified", "unchecked")


def test_prompt_of_an_engine_without_text_is_checked_by_its_hash():
    class Silent:
        """The serving side of a reference engine alone."""

        def __init__(self, engine):
            for name in ("backend_id", "recipe_id", "settings", "weights_digest", "deterministic", "refusal"):
                setattr(self, name, getattr(engine, name))
            self.ready, self.serve = engine.ready, engine.serve

    assert serve().replay(Silent(ReferenceEngine())).prompt == "checked"


def test_prompt_that_cannot_be_encoded_is_unchecked():
    class Mute(ReferenceEngine):
        async def encode(self, text, *, special):
            raise BadRequest("no vocabulary")

    assert serve().replay(Mute()).prompt == "unchecked"


# Row 0: errors, not verdicts.


def test_row_0_bad_envelope_and_unknown_steward_raise():
    case = serve()

    def run(envelope, trust):
        return asyncio.run(replay(envelope, case.disclosure, ReferenceEngine(), trust))

    with pytest.raises(UntrustedSteward):
        run(case.envelope, [SigningKey(bytes(32)).public])
    with pytest.raises(SignatureError):
        run(case.envelope[:-1] + bytes([case.envelope[-1] ^ 1]), [KEY.public])
    with pytest.raises(CanonicalError):
        run(case.envelope + b"\x00", [KEY.public])


def test_row_0_disclosure_of_half_ids_is_an_error():
    with pytest.raises(SchemaError, match="multiple of 4"):
        serve().disclosing(payload=b"\x00").replay()


# Row 1: another request.


def test_row_1_other_request():
    case = serve().disclosing(request=make_request(max_tokens=13))
    assert told(case.replay()) == ("not-replayable", 1, "other-request", "request")


@pytest.mark.parametrize("output", [True, False])
def test_row_1_other_prompt(output):
    case = serve().disclosing(prompt=PROMPT + " ")
    case = case if output else case.disclosing(output=None)
    assert told(case.replay()) == ("not-replayable", 1, "other-request", "prompt")


def test_row_1_payload_of_another_length_unless_opened():
    short = pack_ids(list(PROMPT.encode())[:-1])
    assert told(serve().disclosing(payload=short).replay()) == ("not-replayable", 1, "other-request", "payload")


def test_row_1_disclosure_of_another_serve_of_the_same_request():
    other = serve(serve_id=b"\x77" * 16)
    case = serve()
    case = dataclasses.replace(case, disclosure=other.disclosure)
    assert told(case.replay()) == ("not-replayable", 1, "other-request", "serve_id")


def test_row_1_serve_id_does_not_count_once_the_commitment_is_opened():
    assert serve().disclosing(serve_id=b"\x77" * 16).replay().row == 10


def test_row_1_comes_before_row_2():
    case = serve().claiming(outcome={"finish": "engine-error", "reason": "engine-failed"})
    assert case.disclosing(request=make_request(max_tokens=13)).replay().row == 1


# Rows 2 to 4: nothing to replay.


@pytest.mark.parametrize("finish", ["engine-error", "interrupted"])
def test_row_2_incomplete_serve(finish):
    case = serve().claiming(outcome={"finish": finish, "reason": "engine-failed"})
    verdict = case.replay()
    assert told(verdict) == ("not-replayable", 2, "incomplete-serve", "finish")
    assert verdict.detail == finish


def test_row_2_holds_without_a_disclosure():
    case = serve().claiming(outcome={"finish": "engine-error", "reason": "engine-failed"})
    assert dataclasses.replace(case, disclosure=None).replay().row == 2


def test_row_3_no_commitment():
    case = serve()
    fields = case.receipt.to_map()
    del fields["output_commitment"]
    case = dataclasses.replace(case, receipt=type(case.receipt).from_map(fields))
    assert told(case.replay()) == ("not-replayable", 3, "no-commitment", None)


def test_row_4_no_opening():
    assert told(dataclasses.replace(serve(), disclosure=None).replay()) == ("not-replayable", 4, "no-opening", None)


# Row 5: the receipt against its own commitment.


@pytest.mark.parametrize(
    ("field", "outcome"),
    [
        ("tokens_out", {"tokens_out": 11}),
        ("tokens_out", {"finish": "stop", "tokens_out": 12}),
        ("tokens_in", {"tokens_in": 400}),
        ("tokens_accepted", {"tokens_accepted": 13}),
        ("tokens_delivered", {"tokens_delivered": 13}),
        ("weights_digest", {"weights_digest": b"\x01" * 32}),
    ],
)
def test_row_5_count_that_the_commitment_disproves(field, outcome):
    stopped = outcome.get("finish") == "stop"
    case = serve(committed=serve().output[:9] if stopped else None).claiming(outcome=outcome)
    assert told(case.replay()) == ("diverged", 5, None, field)


def test_row_5_length_that_was_not_reached():
    case = serve(committed=serve().output[:9]).claiming(outcome={"tokens_accepted": 9})
    assert told(case.replay()) == ("diverged", 5, None, "finish")


@pytest.mark.parametrize(
    ("field", "changes"),
    [("max_tokens", {"max_tokens": 100}), ("prompt_hash", {"prompt_hash": b"\x01" * 32})],
)
def test_row_5_receipt_that_repeats_its_request_wrongly(field, changes):
    assert told(serve().claiming(**changes).replay()) == ("diverged", 5, None, field)


def test_row_5_request_that_counts_other_prompt_tokens_than_were_served():
    case = serve(None, make_request(prompt_tokens=4))
    assert told(case.replay()) == ("diverged", 5, None, "prompt_tokens")
    # Nothing vouches for the payload while nothing is opened.
    assert told(case.disclosing(output=None).replay()) == ("not-replayable", 1, "other-request", "payload")


def test_row_5_absent_counts_claim_nothing():
    outcome = {"tokens_in": None, "tokens_accepted": None, "tokens_delivered": None}
    assert serve().claiming(outcome=outcome).replay().row == 10


def test_row_5_needs_no_engine_that_fits():
    case = serve().claiming(outcome={"tokens_in": 400})
    assert case.replay(ReferenceEngine("another")).row == 5
    assert case.disclosing(output=None).replay(ReferenceEngine("another")).row == 6


# Row 6: another engine.


class Renamed(ReferenceEngine):
    def __init__(self, backend_id: str, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.backend_id = backend_id


W1, W2 = ContentId.of_bytes(b"one"), ContentId.of_bytes(b"two")


@pytest.mark.parametrize(
    ("reason", "served_by", "replayed_by"),
    [
        ("other-backend", ReferenceEngine(), Renamed("reference/2/none/none/none/none")),
        ("other-recipe", ReferenceEngine("a"), ReferenceEngine("b", weights_digest=W1)),
        ("other-weights", ReferenceEngine(weights_digest=W1), ReferenceEngine(weights_digest=W2)),
        ("other-weights", ReferenceEngine(weights_digest=W1), ReferenceEngine()),
        ("other-weights", ReferenceEngine(), ReferenceEngine(weights_digest=W1, spec_accept_permille=1)),
        ("other-settings", ReferenceEngine(), ReferenceEngine(spec_accept_permille=1)),
    ],
)
def test_row_6_other_engine(reason, served_by, replayed_by):
    verdict = serve(served_by).replay(replayed_by)
    assert (verdict.kind, verdict.row, verdict.reason) == ("not-replayable", 6, reason)
    assert verdict.exit_code == 11


def test_row_6_blueprint_of_the_receipt_alone():
    case = serve().claiming(engine={"blueprint_id": b"\x01" * 32, "settings_digest": b"\x02" * 32})
    assert told(case.replay()) == ("not-replayable", 6, "other-blueprint", "blueprint_id")


def test_row_6_settings_that_differ_are_named():
    verdict = serve().replay(ReferenceEngine(spec_accept_permille=7))
    assert verdict.detail == "spec_accept_permille: the receipt has 0, this engine 7"


def test_row_6_settings_document_that_is_not_the_receipts_changes_nothing():
    case = serve().disclosing(settings={"engine": "something else"})
    assert case.replay().row == 10
    verdict = case.replay(ReferenceEngine(spec_accept_permille=7))
    assert verdict.reason == "other-settings"
    assert "b3:" in verdict.detail


# Row 7: no determinism.


class Sampling(ReferenceEngine):
    def deterministic(self, request: ServeRequest) -> bool:
        return False


def test_row_7_receipt_that_claims_no_determinism():
    assert told(serve(Sampling()).replay()) == ("not-replayable", 7, "not-claimed", None)
    assert serve(Sampling()).replay(Sampling()).reason == "not-claimed"


def test_row_7_engine_that_has_none():
    assert told(serve().replay(Sampling())) == ("not-replayable", 7, "engine-samples", None)


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
