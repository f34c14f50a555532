"""What is replayed follows from the head and the seed, and from nothing else."""

from __future__ import annotations

import pytest

from mesh.replay.draw import draw
from mesh.replay.plan import Asked, chosen, planned
from mesh.schema.envelope import SigningKey
from tests.support.audits import ENGINE, KEY, census_of, sequence

OTHER = SigningKey(b"\x42" * 32)
SEED = b"\x07" * 32


def test_all_is_everything_at_hand() -> None:
    census = census_of(sequence(6))
    plan = planned(census, Asked())
    assert (plan.chosen, plan.strata[0].population, plan.strata[0].committed) == (6, 6, False)
    assert {seq for ids in chosen(census, plan).values() for seq in ids} == {one.id for one in sequence(6)}
    assert "drawn" not in plan.to_json()["strata"][0]


def test_a_sample_is_the_draw_over_the_head() -> None:
    made = sequence(30)
    census = census_of(made)
    plan = planned(census, Asked(5, SEED))
    drawn = draw(made[-1].id, SEED, range(30), 5)
    assert list(plan.strata[0].drawn) == drawn
    assert chosen(census, plan) == {0: {made[seq].id for seq in drawn}}
    assert plan.to_json()["seed"] == SEED.hex()


def test_a_named_head_bounds_what_is_drawn() -> None:
    made = sequence(30)
    census = census_of(made)
    plan = planned(census, Asked(5, SEED, (made[11].id,), named=True))
    (stratum,) = plan.strata
    assert (stratum.committed, stratum.head_seq, stratum.population) == (True, 11, 12)
    assert list(stratum.drawn) == draw(made[11].id, SEED, range(12), 5)
    assert planned(census_of(made[:12]), Asked(5, SEED)).strata[0].drawn == stratum.drawn


def test_a_head_that_is_not_there_is_a_fault() -> None:
    census = census_of(sequence(3))
    plan = planned(census, Asked(2, SEED, (sequence(3, key=OTHER)[2].id,), named=True))
    assert [fault.kind for fault in census.faults] == ["head"]
    assert not plan.strata[0].committed


def test_each_steward_is_drawn_from_over_its_own_head() -> None:
    ours, theirs = sequence(20), sequence(9, key=OTHER)
    census = census_of([*ours, *theirs], keys=(KEY, OTHER))
    plan = planned(census, Asked(3, SEED))
    by_steward = {one.steward: one.drawn for one in plan.strata}
    assert list(by_steward[KEY.public]) == draw(ours[-1].id, SEED, range(20), 3)
    assert list(by_steward[OTHER.public]) == draw(theirs[-1].id, SEED, range(9), 3)
    assert plan.chosen == 6


def test_each_model_is_a_stratum_where_that_is_wanted() -> None:
    rare = {seq: {"engine": ENGINE | {"recipe_id": "rare"}} for seq in (7, 19)}
    made = sequence(20, changes=rare)
    census = census_of(made)
    plan = planned(census, Asked(3, SEED, each_model=True))
    assert [(one.model, one.population) for one in plan.strata] == [("m", 18), ("rare", 2)]
    assert plan.strata[1].drawn == (7, 19)
    others = [seq for seq in range(20) if seq not in rare]
    assert list(plan.strata[0].drawn) == draw(made[-1].id, SEED, others, 3)
    assert {group: len(ids) for group, ids in chosen(census, plan).items()} == {0: 3, 1: 2}


@pytest.mark.parametrize("size", [4, 400])
def test_a_missing_receipt_is_not_drawn(size: int) -> None:
    made = sequence(30)
    census = census_of([*made[:4], *made[5:]])
    assert 4 not in planned(census, Asked(size, SEED)).strata[0].drawn
