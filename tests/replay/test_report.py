"""The report: the worst that was found decides, and what is not known is not there."""

from __future__ import annotations

import json

import pytest

from mesh.replay.judged import Judgements
from mesh.replay.plan import Asked, planned
from mesh.replay.report import Report
from mesh.schema.envelope import SigningKey
from tests.replay.test_judged import EACH, added
from tests.support.audits import books, census_of, checkpoint, energy, sequence

OTHER = SigningKey(b"\x42" * 32)


def report(*sealed, judged: Judgements | None = None) -> Report:
    census = census_of(sealed)
    return Report(census, planned(census, Asked()), judged or Judgements())


@pytest.mark.parametrize(
    ("made", "replays", "code", "word"),
    [
        ([0, 1, 2], [0], 0, "good"),
        ([0, 1, 2], [0, 4], 11, "undecided"),
        ([0, 1, 2], [0, 4, 3], 10, "refused"),
        ([0, 2], [0], 10, "refused"),
        ([0, 2], [4], 10, "refused"),
        ([], [], 11, "undecided"),
    ],
)
def test_the_worst_decides(made: list[int], replays: list[int], code: int, word: str) -> None:
    sealed = sequence(3)
    found = report(*(sealed[n] for n in made), judged=added([EACH[n] for n in replays]))
    assert (found.exit_code, found.word, found.to_json()["verdict"]) == (code, word, word)


def test_a_stranger_makes_it_undecided_and_a_fault_outweighs_that() -> None:
    ours, theirs = sequence(3), sequence(1, key=OTHER)
    assert report(*ours, *theirs).exit_code == 11
    assert report(ours[0], ours[2], *theirs).exit_code == 10


def test_json_holds_everything_and_survives() -> None:
    made = sequence(3, changes={1: {"energy": energy({"a": 5})}})
    found = report(checkpoint(made, [books("a", 9, idle=4)]), *made, judged=added(EACH)).to_json()
    assert json.loads(json.dumps(found)) == found
    (steward,) = found["stewards"]
    assert (steward["receipts"], steward["first_seq"], steward["last_seq"]) == (3, 0, 2)
    assert steward["head"] == made[-1].id.text
    assert (steward["incomplete"], steward["incomplete_share"]) == (0, 0.0)
    (one,) = found["energy"]
    assert (one["result"], one["receipts_uj"], one["idle_uj"], one["difference_uj"]) == ("exact", 5, 4, 0)
    assert found["replays"]["time"]["by_method"]["decode"]["p50"] == 0.25
    assert found["scores"]["not_verdicts"] is True
    assert found["scores"]["models"]["m"]["share"] == 0.75
    assert found["disclosures"] == {"folder": 6, "malformed": 1}


def test_what_is_not_known_is_not_there() -> None:
    made = sequence(3)
    found = report(checkpoint(made, [books("a", 0)]), made[0], made[2]).to_json()
    assert "time" not in found["replays"]
    assert "receipts_uj" not in found["energy"][0]
    assert "difference_uj" not in found["energy"][0]
    assert found["energy"][0]["result"] == "receipts-missing"
    assert "uncovered" not in found["stewards"][0]
    assert found["stewards"][0]["missing"] == [{"first_seq": 1, "last_seq": 1}]
    alone = report(checkpoint([])).to_json()["stewards"]
    assert "head" not in alone[0]
    assert "incomplete_share" not in alone[0]
