from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import Invalid
from mesh.identity.coverage import coverage_gap
from mesh.identity.mismatch import explain
from mesh.identity.recipe import LABELS, RECIPE_AXES, VERSION_AXES, RuntimeRecipe
from mesh.identity.route import check_route
from mesh.identity.shard import ShardIdentity
from tests.identity.identities import AXES, block, cut, identity

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: bool(text.strip()) and not text.strip().lower().startswith(("main", "master", "head", "latest", "dev"))
    and not text.strip().lower().startswith(("trunk", "refs/"))
)  # fmt: skip
VALUES = {axis: st.integers(1, 2**53 - 1) if axis in VERSION_AXES else TEXTS for axis in RECIPE_AXES}
RECIPES = st.fixed_dictionaries({**VALUES, **dict.fromkeys(LABELS, TEXTS)})
FEW = st.fixed_dictionaries(
    {axis: st.integers(1, 2) if axis in VERSION_AXES else st.sampled_from("ab") for axis in AXES}
)


@given(RECIPES)
def test_any_identity_comes_back_from_its_json(recipe):
    one = identity(recipe=recipe)
    assert ShardIdentity.from_json(json.dumps(one.to_map()).encode()) == one
    assert ShardIdentity.from_json(json.dumps(one.to_map(), ensure_ascii=False, indent=1).encode()) == one


@given(FEW, FEW)
def test_digests_agree_where_every_axis_does_and_nowhere_else(one, two):
    left, right = RuntimeRecipe(**one), RuntimeRecipe(**two, recipe_id="x")
    assert (left.runtime_recipe_digest == right.runtime_recipe_digest) == (one == two)
    found = explain(
        identity(recipe={**one, **dict.fromkeys(LABELS, "l")}), identity(recipe={**two, **dict.fromkeys(LABELS, "m")})
    )
    assert [mismatch.field for mismatch in found] == [axis for axis in RECIPE_AXES if one[axis] != two[axis]]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)).filter(lambda pair: pair[0] < pair[1]), max_size=6))
def test_coverage_is_what_counting_layers_says(ranges):
    computed = {layer for start, end in ranges for layer in range(start, end)}
    assert (coverage_gap(ranges, 6) is None) == (computed == set(range(6)))


@given(st.lists(st.sampled_from([(0, 1), (0, 2), (1, 3), (2, 4), (0, 4)]), min_size=1, max_size=4), st.randoms())
def test_the_order_of_a_route_does_not_decide(ranges, rng):
    shards = [cut(start, end) for start, end in ranges]
    before = check_route(shards)
    rng.shuffle(shards)
    assert check_route(shards) == before


def test_changed_documents_are_refused_or_read_but_never_break():
    rng, good = random.Random(9), json.dumps({**block(), "fingerprint": identity().fingerprint.to_map()}).encode()
    pieces = [
        b'"',
        b"{",
        b"}",
        b"[",
        b"null",
        b"true",
        b"1e9",
        b"-",
        b"\\ud800",
        b"\\u0000",
        b",",
        b":",
        b"\xff",
        b"9" * 40,
    ]
    messages = []
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
            match rng.randrange(4):
                case 0:
                    data[at:at] = rng.choice(pieces)
                case 1:
                    del data[at : min(end, at + 12)]
                case 2:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                case _:
                    data[at:at] = data[at : min(end, at + 60)]
        try:
            read = ShardIdentity.from_json(bytes(data))
        except Invalid as e:
            messages.append(str(e))
        else:
            assert ShardIdentity.from_map(read.to_map()) == read
    assert messages
    assert all(message.isprintable() for message in messages)
