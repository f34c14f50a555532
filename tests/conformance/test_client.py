"""Our own client passes every vector."""

from __future__ import annotations

import pytest

from conformance.client import Client, main
from conformance.index import read_index
from conformance.regenerate import VECTORS

QUESTIONS, _ = read_index(VECTORS)


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
    assert capsys.readouterr().out == "reference\nreplay\ngrant\nidentity\nblueprint\naudit\nlaunch\n"
