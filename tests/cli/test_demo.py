"""What a new user sees first: on the reference engine here, on a real model in README's own test."""

from __future__ import annotations

import re

import pytest

from mesh.cli import demo


def test_demo_reports_one_object_with_both_frauds_caught(mesh) -> None:
    result = mesh("demo", "--reference", "--json")
    report = result.json
    assert result.code == 0
    assert report["engine"]["backend_id"] == "reference/1/none/none/none/none"
    assert report["engine"]["weights_digest"] is None
    assert re.fullmatch("b3:[0-9a-f]{64}", report["receipt_id"])
    assert report["energy"]["basis"] in ("modelled", "unresolved")
    assert ("uj" in report["energy"]) == (report["energy"]["basis"] == "modelled")
    assert (report["tokens_out"], report["verdict"], report["output"]) == (64, "verified", "matches")
    assert report["changed"]["output"] == "differs"
    assert (report["falsified"]["verdict"], report["falsified"]["first_difference"]) == ("diverged", 5)


@pytest.mark.parametrize(("tokens", "position"), [(64, 5), (2, 1), (1, 0)])
def test_demo_falsifies_answers_of_any_length(
    mesh, monkeypatch: pytest.MonkeyPatch, tokens: int, position: int
) -> None:
    monkeypatch.setattr(demo, "MAX_TOKENS", tokens)
    result = mesh("demo", "--reference")
    assert result.code == 0
    assert "replay of the serve:              Verified by decode, prompt: checked, output: matches\n" in result.out
    assert "after sealing:  caught: Verified by decode, prompt: checked, output: differs\n" in result.out
    assert f"by its engine:  caught: Diverged at output token {position}: served id " in result.out
    assert "model" not in result.err
