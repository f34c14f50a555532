"""The decision table up to row 7, where nothing runs, and what Verified says. The serves were really run."""

import asyncio
import dataclasses

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.errors import (
    BadRequest,
    CanonicalError,
    SchemaError,
    SignatureError,
    UntrustedSteward,
)
from mesh.replay.replayer import replay
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import ContentId
from mesh.schema.request import ServeRequest, pack_ids, prompt_hash_of_ids
from tests.replay.sealing import KEY, PROMPT, Playing, Renamed, changed_at, make_request, serve, told

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
