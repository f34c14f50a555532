from __future__ import annotations

import hashlib
import json

import pytest

from mesh.errors import EncodingError, FingerprintError, LayerError, MeshError, MovingReference, SchemaError
from mesh.identity.artifact import ArtifactIdentity, DerivativeBinding
from mesh.identity.canonical_json import canonical_sha256, domain_sha256
from mesh.identity.document import MAX_DOCUMENT_BYTES
from mesh.identity.fields import shown
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.recipe import LABELS, RECIPE_AXES, RuntimeRecipe
from mesh.identity.shard import ShardIdentity
from tests.identity.identities import AXES, CONFIG, CUT, OTHER, WHOLE, binding, block, cut, identity

# Spelled by hand, as the system does whose fingerprints these are.
ARTIFACT_SPELLED = (
    '{"body":{"architecture":"llama","architecture_digest":"' + CONFIG + '","layer_count":4,"source_digest":"'
    + WHOLE + '"},"domain":"meshnet.model-artifact.v1"}'
)  # fmt: skip
RECIPE_SPELLED = (
    '{"body":{"activation_dtype":"bf16","architecture_adapter":"llama.cpp/llama",'
    '"backend_id":"llama.cpp/x86_64-avx2/cpu","boundary_schema_version":2,"compute_dtype":"f32","kv_dtype":"q8_0",'
    '"kv_layout":"contiguous","protocol_schema_version":3,"runtime_version":"0.1.5","tokenizer_revision":"sha256:0001",'
    '"weight_quantization":"Q4_1"},"domain":"meshnet.runtime-recipe.v1"}'
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_digests_are_of_the_spelling_by_hand():
    one = identity()
    assert one.artifact.model_artifact_digest == sha256(ARTIFACT_SPELLED)
    assert one.recipe.runtime_recipe_digest == sha256(RECIPE_SPELLED)
    assert one.fingerprint.key == (sha256(ARTIFACT_SPELLED), sha256(RECIPE_SPELLED))


def test_canonical_json_keeps_characters_as_they_are():
    assert canonical_sha256({"b": "é", "a": [1, None, True, '日"\\']}) == sha256(
        '{"a":[1,null,true,"日\\"\\\\"],"b":"é"}'
    )
    assert domain_sha256("d", {"x": 1}) == sha256('{"body":{"x":1},"domain":"d"}')


def test_there_are_eleven_axes_each_digested_under_its_own_name():
    assert len(RECIPE_AXES) == len(set(RECIPE_AXES)) == 11
    assert identity().recipe.axes == AXES
    other = {**dict.fromkeys(AXES, "other"), "boundary_schema_version": 9, "protocol_schema_version": 9}
    digests = {identity(**{f"recipe__{axis}": other[axis]}).fingerprint.runtime_recipe_digest for axis in AXES}
    assert len(digests | {identity().fingerprint.runtime_recipe_digest}) == 12


@pytest.mark.parametrize(
    ("one", "two"),
    [("activation_dtype", "compute_dtype"), ("kv_dtype", "kv_layout"),
     ("boundary_schema_version", "protocol_schema_version")],
)  # fmt: skip
def test_values_that_change_places_change_the_digest(one, two):
    swapped = identity(**{f"recipe__{one}": AXES[two], f"recipe__{two}": AXES[one]})
    assert swapped.fingerprint.runtime_recipe_digest != identity().fingerprint.runtime_recipe_digest


@pytest.mark.parametrize("label", LABELS)
def test_a_new_name_is_the_same_recipe(label):
    renamed = identity(**{f"recipe__{label}": "renamed"})
    assert renamed.fingerprint.matches(identity().fingerprint)
    assert getattr(renamed.fingerprint, label) == "renamed"


def test_where_bytes_came_from_is_not_digested():
    mirrored = identity(artifact__artifact_id="mirror/small", artifact__revision="v2")
    assert mirrored.fingerprint == identity().fingerprint


@pytest.mark.parametrize(
    ("field", "value"),
    [("content_digest", OTHER), ("architecture", "qwen2"), ("architecture_digest", OTHER), ("layer_count", 5)],
)
def test_what_is_computed_is_digested(field, value):
    other = identity(**{f"artifact__{field}": value})
    assert other.fingerprint.model_artifact_digest != identity().fingerprint.model_artifact_digest
    assert other.fingerprint.runtime_recipe_digest == identity().fingerprint.runtime_recipe_digest


def test_layers_are_no_part_of_the_fingerprint():
    assert identity(shard_start=1, shard_end=2).fingerprint == identity().fingerprint
    assert identity().whole
    assert not identity(shard_start=1).whole
    assert not identity(shard_end=3).whole


def test_a_cut_has_the_identity_of_the_whole():
    assert cut(0, 2).fingerprint == cut(2, 4).fingerprint == identity().fingerprint
    assert cut(0, 4, shard_start=2).fingerprint == cut(0, 4, shard_end=2).fingerprint == identity().fingerprint
    assert cut(0, 2).artifact.source_digest == WHOLE
    assert cut(0, 2).artifact.content_digest == CUT
    foreign = cut(0, 2, artifact__derived_from=binding(0, 2, OTHER))
    assert not foreign.fingerprint.matches(identity().fingerprint)


def test_a_cut_is_not_cut_from_itself():
    with pytest.raises(LayerError, match=r"derived_from\.source_artifact_digest: .* own content_digest"):
        cut(0, 2, artifact__content_digest=WHOLE)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"artifact__derived_from": binding(2, 2)}, "derived_from.shard_end: 2"),
        ({"artifact__derived_from": binding(3, 2)}, "derived_from.shard_end: 2"),
        ({"artifact__derived_from": binding(0, 5)}, "derived_from.shard_end: 5"),
        ({"artifact__derived_from": binding(0, 3)}, "layers 0 to 4, expected within 0 to 3"),
        ({"artifact__derived_from": binding(1, 4)}, "layers 0 to 4, expected within 1 to 4"),
        ({"shard_end": 5}, "shard_end: 5, expected at most the artifact's 4"),
        ({"shard_start": 4}, "shard_end: 4, expected more than shard_start 4"),
        ({"shard_start": 3, "shard_end": 2}, "shard_end: 2, expected more than shard_start 3"),
    ],
)
def test_layers_that_are_not_there_are_refused(changes, field):
    with pytest.raises(LayerError, match=field.replace(".", r"\.")):
        identity(**{"artifact__content_digest": CUT, **changes})


@pytest.mark.parametrize("name", ["main", "MASTER", " Head ", "latest", "dev", "trunk", "refs/heads/x", "Refs/tags/v1"])
@pytest.mark.parametrize("field", ["artifact__revision", "recipe__tokenizer_revision"])
def test_a_reference_that_moves_is_refused(name, field):
    with pytest.raises(MovingReference, match=field.replace("__", r"\.")):
        identity(**{field: name})


@pytest.mark.parametrize("name", ["mainline", "v1.0", "3f2a", "heads/refs/x"])
def test_a_reference_that_does_not_move_is_taken(name):
    assert identity(artifact__revision=name, recipe__tokenizer_revision=name).artifact.revision == name


@pytest.mark.parametrize("axis", RECIPE_AXES)
def test_a_missing_axis_has_no_default(axis):
    with pytest.raises(SchemaError, match=f"recipe: {axis} missing"):
        identity(**{f"recipe__{axis}": None})
    with pytest.raises(TypeError):
        RuntimeRecipe(**{name: value for name, value in AXES.items() if name != axis})


def test_every_missing_axis_is_named():
    with pytest.raises(SchemaError, match="recipe: kv_dtype, kv_layout missing"):
        identity(recipe__kv_dtype=None, recipe__kv_layout=None)


REQUIRED = [
    "schema_version", "artifact", "recipe", "shard_start", "shard_end",
    *(f"artifact__{name}" for name in block()["artifact"]), *(f"recipe__{name}" for name in LABELS),
]  # fmt: skip


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named(field):
    with pytest.raises(SchemaError, match=f"{field.rpartition('__')[2]} missing"):
        identity(**{field: None})


@pytest.mark.parametrize("where", ["", "artifact__", "recipe__"])
def test_an_unknown_field_is_refused(where):
    with pytest.raises(SchemaError, match="unknown field 'rope_theta'"):
        identity(**{f"{where}rope_theta": 1})


def test_an_unknown_field_of_a_cut_is_refused():
    with pytest.raises(SchemaError, match=r"artifact\.derived_from: unknown field 'x'"):
        cut(0, 2, artifact__derived_from={**binding(0, 2), "x": 1})


INTEGERS = ["shard_start", "shard_end", "schema_version", "artifact__layer_count", "recipe__boundary_schema_version",
            "recipe__protocol_schema_version"]  # fmt: skip


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [True, 1.0, "1", [1], -1, 2**53])
def test_an_integer_is_one_and_within_bounds(field, value):
    with pytest.raises(SchemaError, match=field.rpartition("__")[2]):
        identity(**{field: value})


@pytest.mark.parametrize("field", ["artifact__layer_count", "recipe__boundary_schema_version",
                                   "recipe__protocol_schema_version", "shard_end"])  # fmt: skip
def test_a_count_begins_at_one(field):
    with pytest.raises(SchemaError, match="0, expected 1 to"):
        identity(**{field: 0})


def test_a_large_count_is_taken():
    assert identity(artifact__layer_count=2**53 - 1).artifact.layer_count == 2**53 - 1


TEXTS = [*(f"recipe__{axis}" for axis in RECIPE_AXES if not axis.endswith("_version")), "recipe__runtime_version",
         *(f"recipe__{label}" for label in LABELS), "artifact__artifact_id", "artifact__revision",
         "artifact__architecture"]  # fmt: skip


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", ["", " ", "\u3000\u00a0", "a\nb", "x" * 257, 7, ["x"], False])
def test_a_text_says_something(field, value):
    with pytest.raises(SchemaError, match=field.replace("__", r"\.")):
        identity(**{field: value})


def test_a_text_of_256_characters_is_taken():
    assert identity(recipe__kv_layout="é" * 256).recipe.kv_layout == "é" * 256


@pytest.mark.parametrize("field", ["artifact__content_digest", "artifact__architecture_digest"])
@pytest.mark.parametrize("value", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "b3:" + "a" * 64, "a" * 64 + "\n", 5])
def test_a_digest_is_64_lower_case_hex_digits(field, value):
    with pytest.raises(SchemaError, match=field.replace("__", r"\.")):
        identity(**{field: value})


def test_a_digest_of_a_source_is_one():
    with pytest.raises(SchemaError, match=r"derived_from\.source_artifact_digest"):
        cut(0, 2, artifact__derived_from=binding(0, 2, "x"))
    for field, least in (("shard_start", 0), ("shard_end", 1)):
        with pytest.raises(SchemaError, match=rf"derived_from\.{field}: {least - 1}, expected {least} to"):
            cut(0, 2, artifact__derived_from={**binding(0, 2), field: least - 1})


@pytest.mark.parametrize("what", ["artifact", "recipe", "fingerprint", "artifact__derived_from"])
@pytest.mark.parametrize("value", [[], "x", 1])
def test_an_object_is_one(what, value):
    with pytest.raises(SchemaError, match="expected an object"):
        identity(**{what: value})


@pytest.mark.parametrize("value", [None, [], "x", 1, 1.5, True])
def test_an_identity_is_an_object(value):
    with pytest.raises(SchemaError, match=r"identity: .* expected an object"):
        ShardIdentity.from_map(value)


def test_another_version_is_said_before_what_it_holds():
    with pytest.raises(SchemaError, match="schema_version: 2, expected 1"):
        ShardIdentity.from_map({"schema_version": 2})
    with pytest.raises(SchemaError, match="schema_version: 0, expected 1"):
        identity(schema_version=0)


def declared(**changes: str) -> dict[str, str]:
    return {**identity().fingerprint.to_map(), **changes}


def test_a_declared_fingerprint_is_derived_again():
    assert identity(fingerprint=declared()) == identity()
    assert identity(fingerprint=declared(recipe_id="another name")) == identity()
    for name in ("model_artifact_digest", "runtime_recipe_digest"):
        with pytest.raises(FingerprintError, match=rf"fingerprint\.{name}: {OTHER}, expected {declared()[name]}"):
            identity(fingerprint=declared(**{name: OTHER}))


@pytest.mark.parametrize("field", list(declared()))
def test_a_declared_fingerprint_is_whole(field):
    stated = {name: value for name, value in declared().items() if name != field}
    with pytest.raises(SchemaError, match=f"fingerprint: {field} missing"):
        identity(fingerprint=stated)
    with pytest.raises(SchemaError, match=f"fingerprint.{field}"):
        identity(fingerprint=declared(**{field: ""}))


def test_a_fingerprint_is_equal_by_its_digests():
    one, named = identity().fingerprint, CompatibilityFingerprint(**declared(recipe_version="8"))
    assert one.matches(named)
    assert one.key == named.key
    assert not one.matches(CompatibilityFingerprint(**declared(runtime_recipe_digest=OTHER)))
    assert not one.matches(CompatibilityFingerprint(**declared(model_artifact_digest=OTHER)))


def test_null_is_no_cut_and_no_fingerprint():
    value = block()
    value["artifact"]["derived_from"] = None
    value["fingerprint"] = None
    assert ShardIdentity.from_map(value) == identity()


def test_json_form_comes_back():
    for one in (identity(), cut(1, 3)):
        data = json.dumps(one.to_map()).encode()
        assert ShardIdentity.from_json(data) == one
        assert list(one.to_map()) == ["schema_version", "artifact", "recipe", "shard_start", "shard_end", "fingerprint"]


def test_faults_are_named_in_the_order_of_the_steps():
    value = block(
        artifact__revision="main", artifact__content_digest=CUT, artifact__derived_from=binding(0, 5),
        recipe__kv_dtype="", fingerprint=declared(runtime_recipe_digest=OTHER),
    )  # fmt: skip
    steps: list[tuple[type[MeshError], dict[str, object]]] = [
        (SchemaError, {"recipe": block()["recipe"]}),
        (MovingReference, {"artifact": {**value["artifact"], "revision": "v1"}}),
        (LayerError, {"artifact": block()["artifact"]}),
        (FingerprintError, {"fingerprint": declared()}),
    ]
    data = json.dumps(value).encode()
    with pytest.raises(EncodingError):
        ShardIdentity.from_json(data[:-1])
    for error, mended in steps:
        with pytest.raises(error):
            ShardIdentity.from_json(json.dumps(value).encode())
        value.update(mended)
    assert ShardIdentity.from_json(json.dumps(value).encode()) == identity()


def test_a_recipe_whose_revision_moves_is_named_before_layers():
    with pytest.raises(MovingReference):
        identity(recipe__tokenizer_revision="main", artifact__derived_from=binding(0, 5))


def test_values_made_by_a_program_are_checked_too():
    with pytest.raises(MovingReference):
        ArtifactIdentity("a", "main", WHOLE, "llama", CONFIG, 4)
    with pytest.raises(SchemaError):
        ArtifactIdentity("a", "1", "x", "llama", CONFIG, 4)
    with pytest.raises(SchemaError):
        DerivativeBinding("x", 0, 1)
    with pytest.raises(LayerError):
        DerivativeBinding(WHOLE, 1, 1)
    with pytest.raises(SchemaError):
        RuntimeRecipe(**{**AXES, "kv_dtype": ""})
    with pytest.raises(MovingReference):
        RuntimeRecipe(**{**AXES, "tokenizer_revision": "main"})
    with pytest.raises(SchemaError):
        ShardIdentity(identity().artifact, identity().recipe, 0, 1.0)  # type: ignore[arg-type]
    recipe = RuntimeRecipe(**AXES)
    assert (recipe.recipe_id, recipe.recipe_version, recipe.catalogue_version) == ("unnamed", "0", "0")


JSON = json.dumps(block()).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nonsense", JSON[:-1], JSON + b"x", b"\xef\xbb\xbf" + JSON, JSON.replace(b"small", b"\xff"),
        JSON.replace(b'"small"', b'"\\ud800"'), JSON.replace(b'"recipe_id"', b'"\\udfff"'),
        JSON.replace(b'"shard_start": 0', b'"shard_start": NaN'),
        JSON.replace(b'"shard_start": 0', b'"shard_start": -Infinity'),
        JSON.replace(b'"shard_start": 0', b'"shard_start": 0, "shard_start": 0'),
        JSON.replace(b'"kv_dtype"', b'"kv_layout"'), b"[" * 17 + b"]" * 17, b"[" * 30_000, b'{"a":' * 20_000,
        b" " * MAX_DOCUMENT_BYTES + JSON, b"{'a': 1}", b"01",
    ],
)  # fmt: skip
def test_bytes_that_are_no_json_text_are_refused(data):
    with pytest.raises(EncodingError, match="identity: "):
        ShardIdentity.from_json(data)


def test_a_document_may_fill_its_bound():
    data = JSON + b" " * (MAX_DOCUMENT_BYTES - len(JSON))
    assert ShardIdentity.from_json(data) == identity()


@pytest.mark.parametrize("number", [b"0.0", b"0e0", b"1" * 17, b"9" * 5000, b"1e999", b"-1"])
def test_numbers_that_are_no_integers_of_16_digits_are_refused(number):
    with pytest.raises(SchemaError, match="shard_start"):
        ShardIdentity.from_json(JSON.replace(b'"shard_start": 0', b'"shard_start": ' + number))


def test_nesting_within_the_bound_is_a_matter_of_shape():
    with pytest.raises(SchemaError):
        ShardIdentity.from_json(b"[" * 16 + b"]" * 16)


def test_what_strangers_write_is_shown_shortly_and_plainly():
    assert shown("a" * 80) == repr("a" * 80)
    assert shown("a" * 81) == repr("a" * 80 + "...")
    assert shown("\x1b[31mé") == "'\\x1b[31m\\xe9'"
    assert shown("é") == "'é'"


def test_layers_of_a_shard_are_looked_at_however_it_is_made():
    one = identity()
    for start, end in ((-1, 2), (0, 0), (True, 2), (0, 2.0)):
        with pytest.raises(SchemaError):
            ShardIdentity(one.artifact, one.recipe, start, end)
    assert ShardIdentity(one.artifact, one.recipe, 0, 1).shard_end == 1
    for start, end in ((2, 1), (1, 1), (0, 5)):
        with pytest.raises(LayerError):
            ShardIdentity(one.artifact, one.recipe, start, end)


def test_layers_of_a_cut_are_looked_at_however_it_is_made():
    for start, end in ((-1, 2), (0, 0), (False, 2), (0, True)):
        with pytest.raises(SchemaError):
            DerivativeBinding(WHOLE, start, end)
    assert DerivativeBinding(WHOLE, 0, 1).covers(0, 1)
    for start, end in ((2, 1), (1, 1)):
        with pytest.raises(LayerError):
            DerivativeBinding(WHOLE, start, end)
