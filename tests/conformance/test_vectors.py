"""A CDDL tool that is not ours agrees with the vectors about shapes."""

from __future__ import annotations

import json

import pytest
from cddl_verifier import Validator

from conformance.case import ACCEPT, Case
from conformance.regenerate import ROOT
from conformance.writer import item
from tests.support.vector_cases import cases

VALIDATOR = Validator(ROOT / "vectors" / "mesh.cddl")

# Which rule of the CDDL the input of an operation has to match, and the step that says so.
RULES = {
    "request": ("serve-request", 2),
    "outcome": ("serve-outcome", 2),
    "energy": ("energy", 2),
    "receipt": ("receipt", 2),
    "checkpoint": ("checkpoint", 2),
    "launch": ("launch", 2),
    "disclosure": ("disclosure", 2),
    "envelope": ("envelope", 3),
    "weights": ("weights", 2),
    "grant": ("grant", 2),
    "settings": ("settings", None),
}
# What the CDDL says in a comment, since CDDL cannot.
ONLY_IN_WORDS = {
    "disclosure/settings-long", "grant/schema-no-end", "grant/schema-both-ends", "identity/schema-recipe-blank",
    "identity-route/evidence-empty-range", "identity-route/evidence-time-large",
}  # fmt: skip


def shaped() -> list[Case]:
    return [case for case in cases() if case.op in RULES and "input.cbor" in case.files]


def fits(case: Case) -> bool:
    return bool(VALIDATOR.validate(case.files["input.cbor"], root_type=RULES[case.op][0]).valid)


@pytest.mark.parametrize("op", RULES)
def test_cddl_takes_what_is_accepted(op):
    accepted = [case for case in shaped() if case.op == op and case.exit == ACCEPT]
    assert accepted
    assert [case.id for case in accepted if not fits(case)] == []


@pytest.mark.parametrize("op", [op for op, (_, step) in RULES.items() if step == 2])
def test_cddl_refuses_what_has_another_shape(op):
    misshapen = [case for case in shaped() if (case.op, case.answer, case.rule) == (op, "schema", 2)]
    assert misshapen
    assert {case.id for case in misshapen if fits(case)} == ONLY_IN_WORDS & {case.id for case in misshapen}


IDENTITIES = {"identity": "identity", "identity-evidence": "evidence"}


def as_cbor(case: Case) -> bytes | None:
    """The JSON of a case in CBOR, which the tool reads; None where it holds what this CBOR has no word for."""
    try:
        return item(json.loads(case.files["input.txt"]))
    except (AssertionError, ValueError):
        return None


def test_cddl_agrees_about_identities():
    asked = [(case, data) for case in cases() if case.op in IDENTITIES and (data := as_cbor(case)) is not None]
    assert len(asked) > 100
    for case, data in asked:
        if case.exit == ACCEPT or case.answer == "schema":
            shaped = bool(VALIDATOR.validate(data, root_type=IDENTITIES[case.op]).valid)
            assert shaped == (case.exit == ACCEPT or case.id in ONLY_IN_WORDS), case.id
