"""Verdicts add up to the same, in whatever order they come, and come back from a journal as they were."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mesh.errors import SchemaError
from mesh.replay import judged as module
from mesh.replay.judged import Judged, Judgements, quantile
from mesh.replay.score import Mismatch, Score
from mesh.replay.verdict import Verdict, field_diverged, not_replayable, output_diverged, verified
from mesh.schema.ids import ContentId

STEWARD = bytes(32)
SCORE = Score(8, 6, True, (Mismatch(2, 5, 6, 0.25), Mismatch(4, 5, None, None)))


def one(seq: int, verdict: Verdict, **changes: Any) -> Judged:
    fields: dict[str, Any] = {"tokens": 8, "serve_ns": 1000, "replay_ns": 250, "disclosure": "folder"} | changes
    return Judged(STEWARD, seq, ContentId(seq.to_bytes(32, "big")), "m", verdict, **fields)


GOOD = verified(10, "decode", prompt="checked", output="matches", cut=False)
DIFFERS = verified(10, "decode", prompt="checked", output="differs", cut=True)
EACH = [
    one(0, GOOD), one(1, DIFFERS), one(2, field_diverged(5, "tokens_out", "9")),
    one(3, output_diverged(15, first_difference=3, served=7, replayed=None, margin=0.25)),
    one(4, not_replayable(4, "no-opening"), disclosure="malformed", disclosure_fault="not canonical"),
    one(5, not_replayable(7, "not-claimed"), score=SCORE, tokens=None), one(6, GOOD, serve_ns=0),
]  # fmt: skip


def added(each: list[Judged]) -> Judgements:
    judgements = Judgements()
    for judged in each:
        judgements.add(judged)
    return judgements


def test_verdicts_are_counted_by_kind_reason_method_and_model() -> None:
    all_of_them = added(EACH)
    assert dict(all_of_them.verdicts) == {
        "verified": 2, "output-differs": 1, "diverged": 2, "not-replayable": 2
    }  # fmt: skip
    assert dict(all_of_them.reasons) == {"no-opening": 1, "not-claimed": 1}
    assert dict(all_of_them.methods) == {"decode": 3}
    assert dict(all_of_them.disclosures) == {"folder": 6, "malformed": 1}
    assert [judged.seq for judged in all_of_them.diverged] == [1, 2, 3]
    assert [judged.seq for judged in all_of_them.undecided] == [4, 5]
    assert list(all_of_them.ratios["decode"]) == [0.25] * 3  # of 0, 1 and 3: no engine ran for 2, and 6 has no span
    assert (all_of_them.scores["m"].tokens, all_of_them.scores["m"].matching) == (8, 6)
    assert list(all_of_them.scores["m"].margins) == [0.25]


def test_order_does_not_matter() -> None:
    shuffled = EACH.copy()
    random.Random(3).shuffle(shuffled)
    one, other = added(shuffled), added(EACH)
    for name in Judgements.__slots__:
        if name not in ("ratios", "scores"):
            assert getattr(one, name) == getattr(other, name), name
    assert {method: sorted(ratios) for method, ratios in one.ratios.items()} == {
        method: sorted(ratios) for method, ratios in other.ratios.items()
    }


@pytest.mark.parametrize(
    ("each", "code"),
    [([], 0), ([0, 6], 0), ([0, 4], 11), ([0, 1], 10), ([2, 4], 10), ([3], 10), ([5], 11)],
)
def test_the_worst_verdict_decides(each: list[int], code: int) -> None:
    assert added([EACH[number] for number in each]).exit_code == code


@pytest.mark.parametrize("judged", EACH, ids=lambda judged: str(judged.seq))
def test_a_verdict_comes_back_as_it_was(judged: Judged) -> None:
    assert Judged.from_json(json.loads(json.dumps(judged.to_json()))) == judged


@pytest.mark.parametrize(
    "change",
    [
        {"steward": "x"}, {"seq": None}, {"receipt_id": "b3:00"}, {"verdict": None}, {"nonsense": 1}, {"score": {}},
        {"score": 3}, {"receipt_id": None},
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        Judged.from_json(EACH[0].to_json() | change)
    with pytest.raises(SchemaError):
        Judged.from_json({})


def test_only_some_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED", 3)
    many = added([one(seq, not_replayable(4, "no-opening")) for seq in (5, 1, 4, 2, 3, 0)])
    assert [judged.seq for judged in many.undecided] == [0, 1, 2]
    assert many.verdicts["not-replayable"] == 6


@pytest.mark.parametrize(("part", "expected"), [(0.1, 1), (0.5, 5), (0.9, 9), (1.0, 10), (0.0, 1), (0.51, 6)])
def test_quantiles_are_values_that_were_there(part: float, expected: int) -> None:
    assert quantile([float(n) for n in range(1, 11)], part) == expected
    assert quantile([3.0], part) == 3.0
