"""Our own client passes every vector, and a CDDL tool that is not ours agrees about shapes."""

from __future__ import annotations

import pytest
from cddl_verifier import Validator

from conformance.case import ACCEPT, Case
from conformance.client import Client, main
from conformance.regenerate import ROOT, VECTORS
from conformance.runner import read_index
from tests.support.vector_cases import CASES

QUESTIONS, _ = read_index(VECTORS)
VALIDATOR = Validator(ROOT / "vectors" / "mesh.cddl")

# Which rule of the CDDL the input of an operation has to match, and the step that says so.
RULES = {
    "request": ("serve-request", 2),
    "outcome": ("serve-outcome", 2),
    "energy": ("energy", 2),
    "receipt": ("receipt", 2),
    "checkpoint": ("checkpoint", 2),
    "disclosure": ("disclosure", 2),
    "envelope": ("envelope", 3),
    "weights": ("weights", 2),
    "grant": ("grant", 2),
    "settings": ("settings", None),
}
SHAPED = [case for case in CASES if case.op in RULES]
# What the CDDL says in a comment, since CDDL cannot.
ONLY_IN_WORDS = {"disclosure/settings-long", "grant/schema-no-end", "grant/schema-both-ends"}


@pytest.mark.parametrize("group", sorted({question.id.partition("/")[0] for question in QUESTIONS}))
def test_vectors_pass_our_client(group):
    failed = {}
    for question in QUESTIONS:
        if question.id.startswith(f"{group}/"):
            op, *arguments = question.words
            got = Client(VECTORS / question.id).answer(op, arguments)
            if got != (question.exit, question.stdout):
                failed[question.id] = got
    assert failed == {}


def test_client_prints_what_it_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(VECTORS / "request" / "minimal")
    assert main(["request", "input.cbor"]) == 0
    assert capsys.readouterr().out.startswith("b3:")
    assert main(["receipt", "input.cbor"]) == 10
    assert capsys.readouterr().out == "reject schema\n"
    assert main(["features"]) == 0
    assert capsys.readouterr().out == "reference\nreplay\ngrant\n"


def fits(case: Case) -> bool:
    return bool(VALIDATOR.validate(case.files["input.cbor"], root_type=RULES[case.op][0]).valid)


@pytest.mark.parametrize("op", RULES)
def test_cddl_takes_what_is_accepted(op):
    accepted = [case for case in SHAPED if case.op == op and case.exit == ACCEPT]
    assert accepted
    assert [case.id for case in accepted if not fits(case)] == []


@pytest.mark.parametrize("op", [op for op, (_, step) in RULES.items() if step == 2])
def test_cddl_refuses_what_has_another_shape(op):
    misshapen = [case for case in SHAPED if (case.op, case.answer, case.rule) == (op, "schema", 2)]
    assert misshapen
    assert {case.id for case in misshapen if fits(case)} == ONLY_IN_WORDS & {case.id for case in misshapen}
