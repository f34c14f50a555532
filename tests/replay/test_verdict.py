import dataclasses
import json

import pytest

from mesh.replay.verdict import Verdict, field_diverged, not_replayable, output_diverged, verified


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (verified(10, "decode", prompt="checked", output="matches", cut=False), 0),
        (verified(10, "decode", prompt="unchecked", output="not-given", cut=True), 0),
        (verified(10, "decode", prompt="checked", output="differs", cut=False), 10),
        (field_diverged(5, "tokens_out", "more"), 10),
        (output_diverged(15, first_difference=0, served=1, replayed=2, margin=None), 10),
        (not_replayable(3, "no-commitment"), 11),
    ],
)
def test_verdict_exit_code(verdict: Verdict, code: int) -> None:
    assert verdict.exit_code == code


def test_verdict_json_leaves_out_what_does_not_belong() -> None:
    found = output_diverged(15, first_difference=0, served=0, replayed=None, margin=0.25).to_json()
    assert found == {"verdict": "diverged", "row": 15, "first_difference": 0, "served": 0, "margin": 0.25}
    cut = verified(10, "decode", prompt="checked", output="matches", cut=True).to_json()
    assert cut == {
        "verdict": "verified",
        "row": 10,
        "method": "decode",
        "prompt": "checked",
        "output": "matches",
        "ending": "cut",
    }
    assert json.loads(json.dumps(cut)) == cut
    assert not_replayable(1, "other-request", field="prompt").to_json() == {
        "verdict": "not-replayable",
        "row": 1,
        "reason": "other-request",
        "field": "prompt",
    }


def test_verdict_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        not_replayable(3, "no-commitment").row = 4  # type: ignore[misc]
