"""Identities to the letter: what a value is made of, which fault is the first, and where each bound lies."""

from __future__ import annotations

import json

import pytest

from mesh.errors import (
    EncodingError,
    FingerprintError,
    LayerError,
    MovingReference,
    RecipeNotCertified,
    RouteIncompatible,
    SchemaError,
)
from mesh.identity.artifact import ArtifactIdentity, DerivativeBinding
from mesh.identity.canonical_json import canonical_sha256
from mesh.identity.coverage import coverage_gap
from mesh.identity.document import MAX_DEPTH, MAX_DIGITS, MAX_DOCUMENT_BYTES, parse_document
from mesh.identity.evidence import MAX_NODES, MIN_NODES, ForwardEvidence
from mesh.identity.fields import MAX_INTEGER, SHOWN, check_integer, check_object, kind_of
from mesh.identity.handshake import check_handshake
from mesh.identity.mismatch import explain
from mesh.identity.recipe import RuntimeRecipe
from mesh.identity.registry import RecipeStatus, Registry
from mesh.identity.route import check_route, require_route
from mesh.identity.shard import SCHEMA_VERSION, ShardIdentity
from mesh.identity.shard_route import MAX_SHARDS, ShardRoute
from tests.identity.identities import AXES, CONFIG, CUT, OTHER, WHOLE, binding, block, cut, evidence, identity


def test_figures_are_those_that_are_written_down():
    assert (MAX_DOCUMENT_BYTES, MAX_DEPTH, MAX_DIGITS, MAX_INTEGER, SHOWN) == (65_536, 16, 16, 2**53 - 1, 80)
    assert (SCHEMA_VERSION, MIN_NODES, MAX_NODES, MAX_SHARDS) == (1, 2, 1024, 128)


SHAPE_FAULTS = [
    {"artifact__layer_count": 0}, {"artifact__layer_count": 1.5}, {"artifact__artifact_id": ""},
    {"artifact__architecture": " "}, {"artifact__content_digest": "x"}, {"artifact__architecture_digest": "A" * 64},
    {"artifact__derived_from": binding(-1, 2)}, {"artifact__derived_from": binding(0, 0)},
    {"artifact__derived_from": binding(0, 2, "x")}, {"artifact__derived_from": {**binding(0, 2), "more": 1}},
    {"recipe__recipe_id": ""}, {"recipe__recipe_version": " "}, {"recipe__catalogue_version": 5},
    *({f"recipe__{axis}": 0} for axis in AXES if axis != "tokenizer_revision"),
    {"shard_start": -1}, {"shard_end": 0}, {"fingerprint": {}},
    {"fingerprint": {**identity().fingerprint.to_map(), "recipe_id": ""}},
]  # fmt: skip


@pytest.mark.parametrize("field", ["artifact__revision", "recipe__tokenizer_revision"])
@pytest.mark.parametrize("fault", SHAPE_FAULTS)
def test_shape_is_looked_at_before_what_moves(field, fault):
    """Each step is taken for all of an identity before the next."""
    with pytest.raises(SchemaError):
        identity(**{field: "main", **fault})


@pytest.mark.parametrize("field", ["artifact__revision", "recipe__tokenizer_revision"])
def test_what_moves_is_looked_at_before_layers(field):
    for fault in ({"shard_end": 9}, {"artifact__derived_from": binding(0, 9)}, {"shard_start": 4}):
        with pytest.raises(MovingReference):
            identity(**{field: "main", **fault})


@pytest.mark.parametrize(
    ("value", "called"),
    [
        (None, "null"), (True, "true"), (False, "false"), ("x", "text"), (5, "a number"), ([], "a list"),
        ({}, "an object"), (1.5, "a number that is no integer of at most 16 digits"), (b"", "bytes"),
    ],
)  # fmt: skip
def test_a_value_is_called_what_json_calls_it(value, called):
    assert kind_of(value) == called


def test_bounds_of_an_integer_belong_to_it():
    assert check_integer(0, "x", 0) == 0
    assert check_integer(MAX_INTEGER, "x", 1) == MAX_INTEGER
    for value, least in ((0, 1), (-1, 0), (MAX_INTEGER + 1, 0)):
        with pytest.raises(SchemaError, match=rf"x: {value}, expected {least} to {MAX_INTEGER}"):
            check_integer(value, "x", least)


def test_fields_that_may_be_there_are_taken():
    assert check_object({"a": 1, "b": 2}, "x", ("a",), ("b",)) == {"a": 1, "b": 2}
    assert check_object({"a": 1}, "x", ("a",), ("b",)) == {"a": 1}
    with pytest.raises(SchemaError, match="x: unknown field '5'"):
        check_object({"a": 1, 5: 2}, "x", ("a",))


def test_a_spelling_that_no_json_reader_has_is_no_digest():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_sha256(float("nan"))


def test_a_cut_may_have_any_digest_but_the_wholes():
    """Which of the two is the larger says nothing."""
    for content, source in ((WHOLE, OTHER), (OTHER, WHOLE)):
        one = ArtifactIdentity("a", "1", content, "llama", CONFIG, 4, DerivativeBinding(source, 0, 2))
        assert one.source_digest == source
    for same in (WHOLE, "".join(WHOLE[:32] for _ in range(2))):  # the second is another object
        with pytest.raises(LayerError):
            ArtifactIdentity("a", "1", WHOLE, "llama", CONFIG, 4, DerivativeBinding(same, 0, 2))


def test_a_cut_covers_what_lies_within_it():
    held = DerivativeBinding(WHOLE, 1, 3)
    assert [held.covers(*part) for part in ((1, 3), (1, 2), (2, 3), (0, 3), (1, 4), (0, 4))] == [True] * 3 + [False] * 3
    assert held.to_map() == binding(1, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"artifact_id": ""}, {"revision": ""}, {"content_digest": "x"}, {"architecture": ""},
        {"architecture_digest": "x"}, {"layer_count": 0}, {"layer_count": True},
    ],
)  # fmt: skip
def test_an_artifact_that_a_program_makes_is_looked_at_field_by_field(changes):
    fields = dict(zip(("artifact_id", "revision", "content_digest", "architecture", "architecture_digest",
                       "layer_count"), ("a", "1", WHOLE, "llama", CONFIG, 4), strict=True))  # fmt: skip
    assert ArtifactIdentity(**{**fields, "layer_count": 1}).layer_count == 1  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=next(iter(changes))):
        ArtifactIdentity(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["recipe_id", "recipe_version", "catalogue_version"])
def test_a_recipe_that_a_program_makes_has_labels(label):
    with pytest.raises(SchemaError, match=rf"recipe\.{label}"):
        RuntimeRecipe(**{**AXES, label: ""})


def test_a_shard_is_whole_only_with_all_layers():
    assert identity().whole
    assert not identity(shard_start=1).whole
    assert not identity(shard_end=3).whole


def test_a_large_model_is_counted_as_a_small_one_is():
    many = "1000"  # of which Python has several objects
    assert coverage_gap([(0, 500), (500, int(many))], int(many)) is None
    assert coverage_gap([(0, 500), (500, 999)], int(many)) == "layers 999 to 1000 are on no shard"
    assert coverage_gap([(0, 500), (500, 1001)], int(many)) == "the shards have layers up to 1001, the model has 1000"
    assert coverage_gap([(0, 500), (501, 1000)], int(many)) == "layers 500 to 501 are on no shard"
    one, two = (identity(artifact__layer_count=int(many), recipe__protocol_schema_version=int(many)) for _ in range(2))
    assert explain(one, two) == ()
    assert ShardIdentity(one.artifact, one.recipe, 0, int(many)).whole
    cuts = [cut(0, 500, artifact__layer_count=int(many)), cut(500, 1000, artifact__layer_count=int(many))]
    made = ShardRoute(tuple(cuts), ("near", "far")).evidence(session="s", tokens=1, at_ns=1)
    assert Registry().certify(one, made).status == "certified"


def test_many_hosts_are_counted_as_few_are():
    nodes = tuple(f"n{number}" for number in range(300))
    assert ShardRoute((identity(),) * 300, nodes).mismatches(identity()) == ()
    ranges = ((0, 4),) * 300
    assert evidence(node_ids=nodes, shard_ranges=ranges).rejection() is None


def test_evidence_of_one_shard_is_of_its_model():
    made = ShardRoute((identity(),), ("near",)).evidence(session="s", tokens=1, at_ns=1)
    assert (made.layer_count, made.route_epoch, made.synthetic) == (4, 0, False)
    both = ShardRoute((identity(), identity(artifact__layer_count=5)), ("near", "far"))
    assert both.evidence(session="s", tokens=1, at_ns=1).layer_count == 4


def test_evidence_of_a_smaller_model_certifies_no_larger_one():
    with pytest.raises(RecipeNotCertified, match="the evidence is of a model of 3 layers, expected 4"):
        Registry().certify(identity(), evidence(layer_count=3, shard_ranges=((0, 2), (2, 3))))


def test_a_route_that_may_be_used_has_the_fingerprint_of_its_first_shard():
    assert require_route([identity(recipe__recipe_id="only")]).recipe_id == "only"
    assert require_route([cut(0, 2, recipe__recipe_id="first"), cut(2, 4)]).recipe_id == "first"
    registry = Registry()
    registry.register(identity())
    with pytest.raises(RouteIncompatible):
        require_route([identity()], registry=registry)
    assert require_route([identity()], registry=registry, for_certification=True) == identity().fingerprint


def test_what_is_asked_for_beside_a_route_is_named():
    route = ShardRoute((cut(0, 2), cut(2, 4)), ("near", "far"))
    for call in (
        lambda: explain(identity(), identity(), 0),  # type: ignore[misc]
        lambda: check_route([identity()], Registry()),  # type: ignore[misc]
        lambda: require_route([identity()], Registry()),  # type: ignore[misc]
        lambda: route.evidence("s", 1, 1),  # type: ignore[misc]
        lambda: parse_document(b"1", "x", 5),  # type: ignore[misc]
    ):
        with pytest.raises(TypeError):
            call()


def test_a_status_is_what_its_word_spells():
    """Also where it was read, and is another object than the one that is written here."""
    status = RecipeStatus("".join(("cert", "ified")), identity().fingerprint, evidence())  # type: ignore[arg-type]
    assert status.may_serve
    assert RecipeStatus("".join(("da", "rk")), identity().fingerprint).detail.startswith("registered, and no")  # type: ignore[arg-type]
    assert not RecipeStatus("".join(("un", "known")), identity().fingerprint).may_certify  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [-1, 0, 2, 2**53 - 1])
def test_another_version_is_told_in_words(version):
    with pytest.raises(SchemaError) as caught:
        identity(schema_version=version)
    expected = f"expected 0 to {MAX_INTEGER}" if version < 0 else "expected 1"
    assert str(caught.value) == f"schema_version: {version}, {expected}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"synthetic": True, "node_ids": ()}, "synthetic: a synthetic worker computed, expected a real forward"),
        ({"node_ids": ("near",), "tokens_generated": 0}, "nodes: 1 distinct nodes computed, expected at least 2"),
        (
            {"node_ids": ("near", "far", "far"), "tokens_generated": 0},
            "repeated-node: a node is counted more than once",
        ),
        ({"shard_ranges": ((0, 4),), "tokens_generated": 0}, "ranges: 1 ranges of layers, expected one for each node"),
        ({"tokens_generated": 0, "layer_count": 9}, "tokens: no token was generated, expected at least 1"),
        ({"layer_count": 9}, "coverage: layers 4 to 9 are on no shard"),
    ],
)
def test_evidence_is_rejected_for_the_first_reason_in_its_words(changes, said):
    with pytest.raises(RecipeNotCertified) as caught:
        Registry().certify(identity(), evidence(**changes))
    assert str(caught.value) == f"recipe 'small': this evidence certifies nothing: {said}"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "certified_at_ns",
            "9" * 20,
            "evidence.certified_at_ns: expected Unix nanoseconds as decimal digits in a text",
        ),
        ("certified_at_ns", "00", "evidence.certified_at_ns: expected Unix nanoseconds as decimal digits in a text"),
        ("certified_at_ns", str(2**63), "evidence.certified_at_ns: expected Unix nanoseconds, 0 to 2^63-1"),
        ("node_ids", None, "evidence.node_ids: null, expected a list of at most 1024"),
        ("shard_ranges", [[0, 2], [2, 3, 4]], "evidence.shard_ranges[1]: a list, expected a list of two layers"),
        ("shard_ranges", [[0, 2], 5], "evidence.shard_ranges[1]: a number, expected a list of two layers"),
        ("shard_ranges", [[0, 2], [3, 2]], "evidence.shard_ranges[1]: 3 to 2, expected at least one layer"),
        ("synthetic", None, "evidence.synthetic: null, expected true or false"),
        ("node_ids", ["near", 5], "evidence.node_ids[1]: a number, expected text"),
        ("node_ids", ["near", ["far"]], "evidence.node_ids[1]: a list, expected text"),
    ],
)
def test_evidence_is_refused_in_words_that_say_what_it_has_to_be(field, value, said):
    with pytest.raises(SchemaError) as caught:
        ForwardEvidence.from_map({**evidence().to_map(), field: value})
    assert str(caught.value) == said


@pytest.mark.parametrize("digest", ["00" * 32, "ff" * 32])
@pytest.mark.parametrize("name", ["model_artifact_digest", "runtime_recipe_digest"])
def test_a_declared_digest_is_refused_whichever_is_the_larger(name, digest):
    with pytest.raises(FingerprintError, match=f"fingerprint.{name}: {digest}"):
        identity(fingerprint={**identity().fingerprint.to_map(), name: digest})


@pytest.mark.parametrize("at", [2**63, 2**63 + 1, 2**70, -1])
def test_evidence_is_of_a_time_that_64_bits_hold(at):
    with pytest.raises(SchemaError, match=r"evidence\.certified_at_ns: expected Unix nanoseconds, 0 to 2\^63-1"):
        evidence(certified_at_ns=at)


def test_long_values_beyond_latin_are_shown_where_they_part():
    was, is_ = ("".join(chr(0x4E00 + number % 3) for number in range(100)) + end for end in ("x", "y"))
    (only,) = explain(identity(recipe__backend_id=was), identity(recipe__backend_id=is_))
    assert only.detail == f"backend_id is ...'{is_[-21:]}', expected ...'{was[-21:]}'"


def test_evidence_is_read_from_json():
    one = evidence()
    assert ForwardEvidence.from_json(json.dumps(one.to_map()).encode()) == one
    with pytest.raises(EncodingError, match="evidence: not JSON"):
        ForwardEvidence.from_json(b"{")


def test_a_peer_differs_whichever_digest_is_the_larger():
    others = [identity(recipe__kv_dtype=f"f{number}", artifact__architecture=f"a{number}") for number in range(8)]
    mine = identity().fingerprint
    for half in ("model_artifact_digest", "runtime_recipe_digest"):
        found = {getattr(each.fingerprint, half) < getattr(mine, half) for each in others}
        assert found == {True, False}, "both kinds are among them"
    for other in others:
        assert [one.field for one in check_handshake(identity(), other.fingerprint.to_map())] == [
            "model_artifact_digest", "runtime_recipe_digest",
        ]  # fmt: skip
        assert [one.field for one in explain(identity(), other)] == ["architecture", "kv_dtype"]


def test_evidence_fills_its_bounds():
    most = [str(number) for number in range(MAX_NODES)]
    told = {**evidence().to_map(), "node_ids": most, "shard_ranges": [[0, 4]] * MAX_NODES, "route_epoch": 0}
    assert len(ForwardEvidence.from_map(told).node_ids) == MAX_NODES
    assert ForwardEvidence.from_map({**told, "certified_at_ns": str(2**63 - 1)}).certified_at_ns == 2**63 - 1
    with pytest.raises(SchemaError, match="shard_ranges: a list"):
        ForwardEvidence.from_map({**told, "shard_ranges": [[0, 4]] * (MAX_NODES + 1)})
    assert evidence(layer_count=1, shard_ranges=((0, 1), (0, 1))).rejection() is None
    assert evidence(shard_ranges=((0, 1), (1, 4))).rejection() is None


def test_a_recipe_without_evidence_says_what_it_is():
    registry = Registry()
    unknown = registry.status(identity())
    assert (unknown.may_serve, unknown.may_certify, unknown.evidence) == (False, False, None)
    assert unknown.detail == "this recipe was never registered here"
    dark = registry.register(identity())
    assert (dark.may_serve, dark.may_certify) == (False, True)
    assert dark.to_map()["status"] == "dark"


def test_a_cut_of_another_content_is_the_same_artifact():
    one, two = cut(0, 2), cut(0, 2, artifact__content_digest=OTHER)
    assert one.artifact.content_digest == CUT
    assert explain(one, two) == ()


def test_a_route_of_one_whole_shard_covers_its_model():
    value = block()
    assert ShardIdentity.from_map(value).to_map()["artifact"]["derived_from"] is None
    assert cut(1, 2).to_map()["artifact"]["derived_from"] == binding(1, 2)
