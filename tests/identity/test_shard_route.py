from __future__ import annotations

import pytest

from mesh.identity.registry import Registry
from mesh.identity.shard_route import MAX_SHARDS, ShardRoute
from mesh.schema.canonical import encode
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SETTINGS_BYTES
from tests.identity.identities import cut, identity

HALVES = (cut(0, 2), cut(2, 4, artifact__content_digest="ee" * 32))
ROUTE = ShardRoute(HALVES, ("near", "far"))


def test_route_is_named_by_what_its_shards_are():
    document = ROUTE.document
    assert ContentId.of("route", document) == ROUTE.digest
    assert [list(shard) for shard in document["shards"]] == [
        ["model_artifact_digest", "runtime_recipe_digest", "content_digest", "shard_start", "shard_end"]
    ] * 2
    assert document["shards"][1]["content_digest"] == "ee" * 32
    assert (document["shards"][1]["shard_start"], document["shards"][1]["shard_end"]) == (2, 4)
    assert document["shards"][0]["model_artifact_digest"] == identity().fingerprint.model_artifact_digest
    assert document["shards"][0]["runtime_recipe_digest"] == identity().fingerprint.runtime_recipe_digest
    assert ROUTE.digest.text in str(ROUTE.to_map())


def test_largest_document_is_one_that_a_gateway_hands_out():
    many = ShardRoute((cut(0, 2),) * MAX_SHARDS, ("n",) * MAX_SHARDS)
    assert len(encode(many.document)) < MAX_SETTINGS_BYTES


def test_route_elsewhere_is_the_same_and_another_cut_is_another():
    assert ShardRoute(HALVES, ("east", "west")).digest == ROUTE.digest
    other = (HALVES[0], cut(1, 4, artifact__content_digest="ee" * 32))
    assert ShardRoute(other, ROUTE.nodes).digest != ROUTE.digest
    assert ROUTE.to_map()["nodes"] == ["near", "far"]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (ROUTE, []),
        (ShardRoute(HALVES[:1], ("near",)), [("range", "layers"), ("nodes", "nodes")]),
        (ShardRoute(HALVES, ("near", "near")), [("repeated-node", "nodes"), ("nodes", "nodes")]),
        (ShardRoute((*HALVES, HALVES[1]), ("near", "far", "far")), [("repeated-node", "nodes")]),
        (ShardRoute((identity(),), ("near",)), [("nodes", "nodes")]),
        (ShardRoute((), ()), [("range", "shards"), ("nodes", "nodes")]),
        (
            ShardRoute((HALVES[0], cut(2, 4, recipe__kv_dtype="f16")), ROUTE.nodes),
            [("cache-layout", "kv_dtype")],
        ),
    ],
)
def test_each_fault_of_a_route_has_its_reason(route, expected):
    assert [(each.reason, each.field) for each in route.mismatches(identity())] == expected


def test_every_shard_is_held_to_the_whole_model():
    f16 = [cut(0, 2, recipe__kv_dtype="f16"), cut(2, 4, recipe__kv_dtype="f16")]
    (found,) = ShardRoute(tuple(f16), ROUTE.nodes).mismatches(identity())
    assert (found.reason, found.shard_index) == ("cache-layout", 0)
    assert str(found) == "shard 0: cache-layout: kv_dtype is 'f16', expected 'q8_0'"


def test_repeated_host_is_named():
    found = ShardRoute((*HALVES, HALVES[1]), ("near", "far", "far")).mismatches(identity())
    assert [each.detail for each in found] == ["far counted more than once, expected once"]


def test_forward_over_a_route_certifies_its_recipe():
    evidence = ROUTE.evidence(session="s", tokens=3, at_ns=5)
    assert evidence.rejection() is None
    assert (evidence.node_ids, evidence.shard_ranges, evidence.layer_count) == (("near", "far"), ((0, 2), (2, 4)), 4)
    assert (evidence.route_session_id, evidence.tokens_generated, evidence.certified_at_ns) == ("s", 3, 5)
    registry = Registry()
    registry.certify(HALVES[1], evidence)
    assert registry.status(identity()).may_serve
    assert ROUTE.evidence(session="s", tokens=0, at_ns=5).rejection().reason == "tokens"
