"""Counts beyond 256, which Python keeps no one object of: what compares them has to compare what they are."""

from __future__ import annotations

import pytest

from mesh.schema.request import pack_ids
from tests.replay.sealing import Case, changed_at, make_request, serve, told

PROMPT = "how far is it? " * 20
IDS = list(PROMPT.encode())


def long(*, cut: int | None = None, committed: list[int] | None = None) -> Case:
    request = make_request(max_tokens=300, prompt=PROMPT)
    return serve(request=request, payload=IDS, cut=cut, committed=committed).disclosing(prompt=PROMPT)


def test_long_serve_is_verified():
    verdict = long().replay()
    assert told(verdict) == ("verified", 10, None, None)
    assert (verdict.prompt, verdict.output) == ("checked", "matches")


@pytest.mark.parametrize("cut", [257, 299])
def test_long_cancelled_serve_is_verified(cut):
    verdict = long(cut=cut).replay()
    assert (verdict.kind, verdict.ending) == ("verified", "cut")


@pytest.mark.parametrize("at", [0, 256, 299])
def test_long_falsified_serve_diverges_where_it_was_changed(at):
    made = long().output
    verdict = long(committed=changed_at(at, made)).replay()
    assert (verdict.kind, verdict.first_difference) == ("diverged", at)
    assert (verdict.served, verdict.replayed) == (made[at] ^ 1, made[at])


def test_long_serve_that_names_no_output_is_verified():
    assert long().disclosing(output=None).replay().kind == "verified"


def test_long_serve_whose_counts_are_not_those_of_the_commitment():
    for field, claimed in (("tokens_out", 281), ("tokens_in", len(IDS) + 1), ("tokens_delivered", 281)):
        verdict = long(cut=280).claiming(outcome={field: claimed}).replay()
        assert told(verdict) == ("diverged", 5, None, field)


def test_long_payload_of_another_length_unless_opened():
    assert told(long().disclosing(payload=pack_ids(IDS[:-1]), output=None).replay()) == (
        "not-replayable", 1, "other-request", "payload",
    )  # fmt: skip
