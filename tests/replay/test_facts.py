import dataclasses

import pytest

from mesh.engine.reference import ReferenceEngine
from mesh.replay.facts import EngineFacts, first_other, recipe_detail, settings_detail
from mesh.schema.disclosure import settings_digest

A, B = b"\x01" * 32, b"\x02" * 32
BASE = EngineFacts("engine/1/a/b/c/d", "model", A, weights_digest=A, blueprint_id=A, runtime_recipe_digest=A)


def test_equal_facts_have_no_other() -> None:
    assert first_other(BASE, BASE) is None


# Each row of changes also differs in everything that is compared after it.
@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("other-backend", "backend_id"),
        ("other-recipe", "runtime_recipe_digest"),
        ("other-weights", "weights_digest"),
        ("other-blueprint", "blueprint_id"),
        ("other-settings", "settings_digest"),
    ],
)
def test_first_other_is_named_in_order(reason: str, field: str) -> None:
    order = ["backend_id", "runtime_recipe_digest", "weights_digest", "blueprint_id", "settings_digest"]
    changes = {name: "x/1/a/b/c/d" if name == "backend_id" else B for name in order[order.index(field) :]}
    changed = dataclasses.replace(BASE, **changes)
    for pair in ((BASE, changed), (changed, BASE)):
        other = first_other(*pair)
        assert other is not None
        assert (other.reason, other.field) == (reason, field)


@pytest.mark.parametrize("field", ["weights_digest", "blueprint_id"])
def test_absent_on_one_side_differs_and_on_both_does_not(field: str) -> None:
    without = dataclasses.replace(BASE, **{field: None})
    for pair in ((BASE, without), (without, BASE)):
        other = first_other(*pair)
        assert other is not None
        assert other.field == field
    assert first_other(without, without) is None


def test_recipe_is_compared_by_name_where_a_digest_is_missing() -> None:
    named = dataclasses.replace(BASE, runtime_recipe_digest=None)
    assert first_other(BASE, named) is None
    other = first_other(BASE, dataclasses.replace(named, recipe_id="another"))
    assert other is not None
    assert (other.reason, other.field) == ("other-recipe", "recipe_id")
    assert other.detail == "the receipt has model, this engine another"


def test_recipe_name_does_not_count_where_both_have_the_digest() -> None:
    assert first_other(BASE, dataclasses.replace(BASE, recipe_id="another")) is None


def test_facts_of_an_engine_name_no_blueprint() -> None:
    facts = EngineFacts.of_engine(ReferenceEngine("tiny"))
    assert (facts.recipe_id, facts.blueprint_id, facts.runtime_recipe_digest) == ("tiny", None, None)


def test_settings_detail_names_what_differs() -> None:
    theirs = {"kv": "q8_0", "threads": 1, "template": A, "same": True}
    here = {"kv": "f16", "template": B, "same": True}
    told = settings_detail(settings_digest(theirs), theirs, here)
    assert told is not None
    assert "kv: the receipt has 'q8_0', this engine 'f16'" in told
    assert "threads: the receipt has 1, this engine none" in told
    assert A.hex() in told
    assert "same" not in told


def test_settings_detail_is_not_taken_from_another_document() -> None:
    assert settings_detail(A, {"kv": "q8_0"}, {"kv": "f16"}) is None
    assert settings_detail(A, {"kv": "x" * 70_000}, {}) is None


def test_settings_detail_lets_no_control_character_through() -> None:
    theirs = {"\x1b[2J": "\x1b[2J"}
    told = settings_detail(settings_digest(theirs), theirs, {})
    assert told is not None
    assert told.isprintable()


def test_recipe_detail_names_the_axes_that_differ() -> None:
    theirs = {"kv": "x", "recipe": {"kv_dtype": "q8_0", "runtime_version": "1"}}
    here = {"kv": "y", "recipe": {"kv_dtype": "f16", "runtime_version": "1"}}
    told = recipe_detail(settings_digest(theirs), theirs, here)
    assert told == "kv_dtype: the receipt has 'q8_0', this engine 'f16'"
    assert recipe_detail(A, theirs, here) is None
    assert recipe_detail(settings_digest(theirs), theirs, {"kv": "y"}) is None
    assert recipe_detail(settings_digest(here), here, here) is None
    without = {"recipe": "q8_0"}
    assert recipe_detail(settings_digest(without), without, here) is None


def test_settings_detail_is_bounded() -> None:
    theirs = {f"s{i:02}": i for i in range(20)}
    told = settings_detail(settings_digest(theirs), theirs, {})
    assert told is not None
    assert told.endswith("; and 12 more")
