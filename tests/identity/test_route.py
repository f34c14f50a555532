from __future__ import annotations

import pytest

from mesh.errors import RecipeNotCertified, RouteIncompatible, SchemaError
from mesh.identity.coverage import coverage_gap
from mesh.identity.evidence import MAX_NODES, ForwardEvidence
from mesh.identity.handshake import FINGERPRINT_MISMATCH, check_handshake, handshake_error
from mesh.identity.mismatch import AXIS_REASONS, Mismatch, explain
from mesh.identity.recipe import RECIPE_AXES
from mesh.identity.registry import RecipeStatus, Registry
from mesh.identity.route import check_route, require_route
from tests.identity.identities import AXES, OTHER, binding, cut, evidence, identity

REASONS = {
    "weight_quantization": "weight-quantization",
    "activation_dtype": "activation-recipe",
    "compute_dtype": "activation-recipe",
    "kv_dtype": "cache-layout",
    "kv_layout": "cache-layout",
    "tokenizer_revision": "tokenizer",
    "architecture_adapter": "architecture",
    "backend_id": "backend",
    "runtime_version": "runtime",
    "boundary_schema_version": "boundary-schema",
    "protocol_schema_version": "boundary-schema",
}


def told(mismatches: tuple[Mismatch, ...]) -> list[tuple[str, str]]:
    return [(one.reason, one.field) for one in mismatches]


@pytest.mark.parametrize("axis", RECIPE_AXES)
def test_explain_names_the_axis_and_both_values(axis):
    value: object = 9 if axis.endswith("schema_version") else "other"
    (only,) = explain(identity(), identity(**{f"recipe__{axis}": value}), shard_index=3)
    assert (only.reason, only.field, only.shard_index) == (REASONS[axis], axis, 3)
    assert only.detail == f"{axis} is {value!r}, expected {AXES[axis]!r}"
    assert str(only) == f"shard 3: {REASONS[axis]}: {only.detail}"
    assert only.to_map() == {"reason": only.reason, "field": axis, "detail": only.detail, "shard_index": 3}


def test_every_axis_has_a_reason():
    assert AXIS_REASONS == REASONS


@pytest.mark.parametrize(
    ("field", "value", "reason", "named"),
    [
        ("content_digest", OTHER, "artifact", "source_digest"),
        ("architecture", "qwen2", "architecture", "architecture"),
        ("architecture_digest", OTHER, "architecture", "architecture_digest"),
        ("layer_count", 5, "artifact", "layer_count"),
    ],
)
def test_explain_names_what_differs_of_the_artifact(field, value, reason, named):
    (only,) = explain(identity(), identity(**{f"artifact__{field}": value}))
    assert (only.reason, only.field, only.shard_index) == (reason, named, None)
    assert str(only) == f"{reason}: {only.detail}"
    assert str(value) in only.detail
    assert str(getattr(identity().artifact, field)) in only.detail


def test_explain_names_everything_in_order():
    other = identity(
        artifact__content_digest=OTHER, artifact__layer_count=5, recipe__protocol_schema_version=9,
        recipe__kv_dtype="f16",
    )  # fmt: skip
    assert told(explain(identity(), other)) == [
        ("artifact", "source_digest"), ("artifact", "layer_count"), ("cache-layout", "kv_dtype"),
        ("boundary-schema", "protocol_schema_version"),
    ]  # fmt: skip


def test_labels_and_layers_are_no_mismatch():
    assert explain(identity(), cut(1, 2, recipe__recipe_id="x", artifact__artifact_id="y")) == ()


def test_a_strangers_text_is_shown_harmless():
    (only,) = explain(identity(), identity(recipe__kv_dtype="x\u202e" + "y" * 200))
    assert only.detail.isprintable()
    assert len(only.detail) < 200


def test_long_values_are_shown_where_they_part():
    was, is_ = f"cpu {'n=1 ' * 30}repack=on", f"cpu {'n=1 ' * 30}repack=off"
    (only,) = explain(identity(recipe__backend_id=was), identity(recipe__backend_id=is_))
    assert only.detail == "backend_id is ...'n=1 n=1 n=1 repack=off', expected ...'n=1 n=1 n=1 repack=on'"
    (only,) = explain(identity(recipe__backend_id="x" * 80), identity(recipe__backend_id="x" * 79))
    assert only.detail == f"backend_id is '{'x' * 79}', expected '{'x' * 80}'"
    (only,) = explain(identity(recipe__backend_id="x" * 60), identity(recipe__backend_id="x" * 59))
    assert only.detail == f"backend_id is '{'x' * 59}', expected '{'x' * 60}'"
    (only,) = explain(identity(recipe__backend_id="x" * 101), identity(recipe__backend_id="x" * 100))
    assert only.detail == f"backend_id is ...'{'x' * 20}', expected ...'{'x' * 21}'"
    (only,) = explain(identity(recipe__backend_id="x" * 81), identity(recipe__backend_id="y" * 200))
    assert only.detail == f"backend_id is '{'y' * 80}...', expected '{'x' * 80}...'"


@pytest.mark.parametrize(
    ("ranges", "gap"),
    [
        ([(0, 4)], None),
        ([(0, 2), (2, 4)], None),
        ([(2, 4), (0, 2)], None),
        ([(0, 3), (1, 4)], None),
        ([(0, 4), (1, 2)], None),
        ([(0, 1), (1, 2), (2, 3), (3, 4)], None),
        ([], "layers 0 to 4"),
        ([(1, 4)], "layers 0 to 1"),
        ([(0, 2), (3, 4)], "layers 2 to 3"),
        ([(0, 3)], "layers 3 to 4"),
        ([(0, 4), (1, 2), (5, 6)], "layers 4 to 5"),
        ([(0, 5)], "layers up to 5, the model has 4"),
    ],
)
def test_a_hole_is_fatal_and_an_overlap_is_not(ranges, gap):
    found = coverage_gap(ranges, 4)
    assert (found is None) == (gap is None)
    assert gap is None or gap in (found or "")


def test_a_route_of_cuts_and_a_whole_model_go_together():
    assert check_route([cut(0, 2), cut(2, 4)]) == ()
    assert check_route([identity()]) == ()
    assert check_route([identity(shard_end=1), cut(1, 4, recipe__recipe_id="x")]) == ()
    assert require_route([cut(0, 2), cut(1, 4)]) == identity().fingerprint


def test_a_route_without_shards_is_refused():
    assert told(check_route([])) == [("range", "shards")]


def test_a_route_names_every_reason_with_the_shard():
    shards = [cut(0, 1), cut(2, 4, recipe__kv_dtype="f16"), cut(2, 4, artifact__derived_from=binding(2, 4, OTHER))]
    found = check_route(shards)
    assert [(one.shard_index, one.reason, one.field) for one in found] == [
        (1, "cache-layout", "kv_dtype"), (2, "artifact", "source_digest"), (None, "range", "layers"),
    ]  # fmt: skip
    with pytest.raises(
        RouteIncompatible, match="shard 1: cache-layout: kv_dtype is 'f16', expected 'q8_0'; "
    ) as caught:
        require_route(shards)
    assert caught.value.reasons == [one.to_map() for one in found]


def test_a_dark_recipe_may_only_be_certified():
    registry, shards = Registry(), [cut(0, 2), cut(2, 4)]
    assert told(check_route(shards, registry=registry)) == [("uncertified", "status")]
    assert told(check_route(shards, registry=registry, for_certification=True)) == [("uncertified", "status")]
    assert registry.status(identity()).status == "unknown"
    assert registry.register(shards[0]).status == "dark"
    (dark,) = check_route(shards, registry=registry)
    assert dark.detail == "dark: registered, and no real forward over several hosts has certified it"
    assert check_route(shards, registry=registry, for_certification=True) == ()
    with pytest.raises(RecipeNotCertified, match="recipe 'small': dark, expected certified"):
        registry.require_serving(shards[0])
    registry.certify(shards[0], evidence())
    assert check_route(shards, registry=registry) == ()
    assert check_route(shards, registry=registry, for_certification=True) == ()
    assert registry.require_serving(shards[1].fingerprint).status == "certified"


def test_a_hole_is_named_beside_what_is_dark():
    found = check_route([cut(0, 1)], registry=Registry())
    assert [one.reason for one in found] == ["range", "uncertified"]
    assert found[1].detail == "unknown: this recipe was never registered here"


def test_a_recipe_is_known_by_its_digests():
    registry = Registry()
    registry.register(identity())
    assert registry.status(identity(recipe__recipe_id="renamed")).status == "dark"
    assert registry.status(identity(recipe__kv_dtype="f16")).status == "unknown"
    assert registry.status(identity(artifact__content_digest=OTHER)).status == "unknown"
    assert len(registry.known) == 1


def test_a_certified_recipe_stays_so():
    registry = Registry()
    first = registry.certify(identity(), evidence())
    assert registry.register(identity()) == first
    assert first.detail == "certified by route session session-1 over 2 nodes"
    assert first.may_serve
    assert first.may_certify
    again = Registry(registry.known)
    assert again.status(identity()) == first
    assert Registry([RecipeStatus("unknown", identity().fingerprint)]).known == ()


def test_a_registry_as_json():
    registry = Registry()
    registry.register(identity(recipe__kv_dtype="f16"))
    status = registry.certify(identity(), evidence())
    assert registry.to_map() == {
        "schema_version": 1,
        "dark": [identity(recipe__kv_dtype="f16").fingerprint.to_map()],
        "certified": [
            {"status": "certified", "detail": status.detail, "fingerprint": identity().fingerprint.to_map(),
             "evidence": evidence().to_map()}
        ],
    }  # fmt: skip
    assert registry.register(identity(recipe__kv_dtype="f32")).to_map()["evidence"] is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"synthetic": True}, "synthetic"),
        ({"node_ids": ()}, "nodes"),
        ({"node_ids": ("near",)}, "nodes"),
        ({"node_ids": ("near", "near")}, "nodes"),
        ({"node_ids": ("near", "far", "near"), "shard_ranges": ((0, 1), (1, 2), (2, 4))}, "repeated-node"),
        ({"shard_ranges": ((0, 4),)}, "ranges"),
        ({"shard_ranges": ((0, 1), (1, 2), (2, 4))}, "ranges"),
        ({"tokens_generated": 0}, "tokens"),
        ({"shard_ranges": ((0, 1), (2, 4))}, "coverage"),
        ({"shard_ranges": ((0, 2), (2, 3))}, "coverage"),
        ({"shard_ranges": ((0, 2), (2, 5))}, "coverage"),
        ({"shard_ranges": ((1, 2), (2, 4))}, "coverage"),
    ],
)
def test_evidence_that_shows_nothing_certifies_nothing(changes, reason):
    registry = Registry()
    registry.register(identity())
    one = evidence(**changes)
    rejection = one.rejection()
    assert rejection is not None
    assert rejection.reason == reason
    with pytest.raises(RecipeNotCertified, match=f"'small': this evidence certifies nothing: {reason}: "):
        registry.certify(identity(), one)
    assert registry.status(identity()).status == "dark"


def test_evidence_of_a_real_forward_certifies():
    for one in (evidence(), evidence(shard_ranges=((0, 3), (1, 4))), evidence(synthetic=False, tokens_generated=9)):
        assert one.rejection() is None
        assert Registry().certify(identity().fingerprint, one).evidence == one


def test_evidence_is_of_the_model_that_it_certifies():
    other = evidence(layer_count=5, shard_ranges=((0, 2), (2, 5)))
    with pytest.raises(RecipeNotCertified, match="coverage: the evidence is of a model of 5 layers, expected 4"):
        Registry().certify(identity(), other)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"route_session_id": ""}, "route_session_id"),
        ({"route_epoch": -1}, "route_epoch"),
        ({"tokens_generated": -1}, "tokens_generated"),
        ({"layer_count": 0}, "layer_count"),
        ({"certified_at_ns": -1}, "certified_at_ns"),
        ({"certified_at_ns": 2**63}, "certified_at_ns"),
        ({"certified_at_ns": True}, "certified_at_ns"),
        ({"certified_at_ns": 1.5}, "certified_at_ns"),
        ({"synthetic": 1}, "synthetic"),
        ({"node_ids": ("near", "")}, r"node_ids\[1\]"),
        ({"shard_ranges": ((0, 2), (-1, 4))}, r"shard_ranges\[1\]\[0\]"),
        ({"shard_ranges": ((0, 0), (0, 4))}, r"shard_ranges\[0\]\[1\]"),
        ({"shard_ranges": ((0, 2), (3, 3))}, r"shard_ranges\[1\]: 3 to 3"),
    ],
)
def test_evidence_that_is_none_is_refused(changes, field):
    with pytest.raises(SchemaError, match=f"evidence.{field}"):
        evidence(**changes)


def test_evidence_as_json_comes_back():
    one = evidence(certified_at_ns=2**63 - 1)
    assert one.to_map()["certified_at_ns"] == str(2**63 - 1)
    assert ForwardEvidence.from_map(one.to_map()) == one
    assert ForwardEvidence.from_map(evidence(certified_at_ns=0).to_map()).certified_at_ns == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"node_ids": "near"}, "node_ids"),
        ({"node_ids": ["n"] * (MAX_NODES + 1)}, "node_ids"),
        ({"shard_ranges": {}}, "shard_ranges"),
        ({"shard_ranges": [[0, 2], [2]]}, r"shard_ranges\[1\]"),
        ({"shard_ranges": [[0, 2], "24"]}, r"shard_ranges\[1\]"),
        ({"certified_at_ns": 5}, "certified_at_ns"),
        ({"certified_at_ns": "05"}, "certified_at_ns"),
        ({"certified_at_ns": "-5"}, "certified_at_ns"),
        ({"certified_at_ns": "1" * 20}, "certified_at_ns"),
        ({"certified_at_ns": "\u0663"}, "certified_at_ns"),
        ({"certified_at_ns": ""}, "certified_at_ns"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_evidence_in_another_shape_is_refused(changes, field):
    with pytest.raises(SchemaError, match=field):
        ForwardEvidence.from_map({**evidence().to_map(), **changes})


@pytest.mark.parametrize("field", list(evidence().to_map()))
def test_evidence_has_no_defaults_in_json(field):
    value = {name: told for name, told in evidence().to_map().items() if name != field}
    with pytest.raises(SchemaError, match=f"{field} missing"):
        ForwardEvidence.from_map(value)


def test_a_handshake_of_equals_opens():
    presented = identity(recipe__recipe_id="x", shard_end=2).fingerprint.to_map()
    assert check_handshake(identity(), presented) == ()
    assert handshake_error(()) is None


def test_a_handshake_names_what_differs():
    other = identity(artifact__content_digest=OTHER, recipe__kv_dtype="f16").fingerprint
    found = check_handshake(identity(), other.to_map())
    assert told(found) == [("artifact", "model_artifact_digest"), ("fingerprint", "runtime_recipe_digest")]
    mine = identity().fingerprint
    assert found[0].detail == f"the peer serves {other.model_artifact_digest}, expected {mine.model_artifact_digest}"
    assert found[1].detail == (
        f"the peer runs recipe {other.runtime_recipe_digest} ('small' version '7'), expected recipe "
        f"{mine.runtime_recipe_digest} ('small' version '7')"
    )
    error = handshake_error(found)
    assert error == {
        "code": FINGERPRINT_MISMATCH, "detail": f"{found[0]}; {found[1]}", "retryable": False,
    }  # fmt: skip
    assert FINGERPRINT_MISMATCH == "ERROR_CODE_FINGERPRINT_MISMATCH"


@pytest.mark.parametrize("changes", [{"recipe__kv_dtype": "f16"}, {"artifact__layer_count": 5}])
def test_a_handshake_names_one_side_alone(changes):
    reason = "fingerprint" if "recipe__kv_dtype" in changes else "artifact"
    assert [one.reason for one in check_handshake(identity(), identity(**changes).fingerprint.to_map())] == [reason]


@pytest.mark.parametrize("presented", [None, [], {}, {"model_artifact_digest": "x"}])
def test_a_handshake_without_a_fingerprint_does_not_open(presented):
    (only,) = check_handshake(identity(), presented)
    assert (only.reason, only.field) == ("fingerprint", "fingerprint")
    assert "the peer presents none that can be used: fingerprint: " in only.detail
