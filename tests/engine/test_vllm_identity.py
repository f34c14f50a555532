"""What a vLLM server is follows from the model's folder and from what was said; what nobody said has no default."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmTextEngine
from mesh.engine.vllm_described import ServerFacts, VllmConfig
from mesh.engine.vllm_identity import WeightsFolder, identified
from mesh.identity.mismatch import explain
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId
from tests.support.fake_vllm import FakeVllm
from tests.support.vllm_engines import on
from tests.support.vllm_folder import write_model_folder

URL = "http://127.0.0.1:8000"
CACHE = {"block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": "True", "num_gpu_blocks": "8192"}
FACTS = ServerFacts("0.32.0", "tiny", "tiny", 2048, CACHE, "1.7e+09", "vllm-0.32.0-0a1b2c3d")
TEMPLATE = ContentId.of_bytes(b"template")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path / "model")


def told(
    folder: Path | None, facts: ServerFacts = FACTS, *, tokenizer: bytes | None = b"\x01" * 32,
    template: ContentId | None = TEMPLATE, **config: Any,
) -> tuple[ShardIdentity | None, str | None]:  # fmt: skip
    settings = VllmConfig(URL, **{"dtype": "float32", "device": "cpu", **config})
    weights = None if folder is None else WeightsFolder.of(folder)
    return identified(facts, settings, weights, tokenizer=tokenizer, template=template)


def identity(*args: Any, **kwargs: Any) -> ShardIdentity:
    found, gap = told(*args, **kwargs)
    assert found is not None, gap
    return found


def axes(one: ShardIdentity, two: ShardIdentity) -> list[str]:
    return [mismatch.field for mismatch in explain(one, two)]


def test_an_identity_is_read_off_the_folder(folder):
    one = identity(folder)
    assert one.artifact.content_digest == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert one.artifact.architecture_digest == hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    assert (one.artifact.architecture, one.artifact.layer_count) == ("llama", 2)
    assert (one.recipe.architecture_adapter, one.recipe.runtime_version) == ("vllm/LlamaForCausalLM", "vllm/0.32.0")
    assert one.recipe.kv_dtype == one.recipe.activation_dtype == "float32"
    assert one.recipe.backend_id == "vllm/cpu"
    assert one.recipe.kv_layout == "paged block_size=16 enable_prefix_caching=True"


def test_the_same_folder_elsewhere_is_the_same(folder, tmp_path):
    elsewhere = tmp_path / "x" / "renamed"
    shutil.copytree(folder, elsewhere)
    assert identity(elsewhere).fingerprint.key == identity(folder, recipe_id="another name").fingerprint.key


def cache(**changes: str) -> ServerFacts:
    return replace(FACTS, cache={**CACHE, **changes})


@pytest.mark.parametrize(
    ("facts", "config", "named"),
    [
        (cache(cache_dtype="fp8"), {}, ["kv_dtype"]),
        (cache(cache_dtype="float32"), {}, []),
        (cache(block_size="32"), {}, ["kv_layout"]),
        (cache(enable_prefix_caching="False"), {}, ["kv_layout"]),
        (cache(num_gpu_blocks="1"), {}, []),
        (replace(FACTS, version="0.33.0"), {}, ["runtime_version"]),
        (FACTS.named("vllm-0.32.0-tp2-pp2-0a1b2c3d"), {}, ["backend_id"]),
        (replace(FACTS, context_tokens=1, started_s="2", model="other", root="/srv/x"), {}, []),
        (FACTS, {"device": "cuda"}, ["backend_id"]),
        (FACTS, {"dtype": "bfloat16"}, ["weight_quantization", "activation_dtype", "compute_dtype", "kv_dtype"]),
        (FACTS, {"template": None}, ["tokenizer_revision"]),
        (FACTS, {"template": ContentId.of_bytes(b"another")}, ["tokenizer_revision"]),
        (FACTS, {"tokenizer": b"\x02" * 32}, ["tokenizer_revision"]),
        (FACTS, {"slots": 3}, []),
    ],
)
def test_a_change_shows_on_its_axis_and_on_no_other(folder, facts, config, named):
    assert axes(identity(folder), identity(folder, facts, **config)) == named


def test_a_change_of_a_file_shows_on_its_axis(folder, tmp_path):
    before = identity(folder)
    write_model_folder(folder, weights=1)
    assert axes(before, identity(folder)) == ["source_digest"]
    write_model_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5}))
    assert axes(before, identity(folder)) == ["architecture_digest"]
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert axes(before, identity(folder)) == ["architecture_digest", "layer_count"]
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OtherForCausalLM"]}))
    assert axes(before, identity(folder)) == ["architecture_digest", "architecture_adapter"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen2"}))
    assert axes(before, identity(folder)) == ["architecture", "architecture_digest"]
    write_model_folder(folder)
    (folder / "generation_config.json").write_text("{}")  # nothing of it is left to a server
    assert axes(before, identity(folder)) == []


def test_how_weights_are_packed_is_part_of_the_configuration(folder):
    before = identity(folder)
    (folder / "quantize_config.json").write_text("{}")
    found = axes(before, identity(folder))
    assert found == ["architecture_digest", "weight_quantization"]


@pytest.mark.parametrize(
    ("changes", "axis"),
    [
        ({"dtype": None}, "recipe.activation_dtype"),
        ({"device": None}, "recipe.backend_id"),
        ({"requantized": True}, "recipe.weight_quantization"),
        ({"tokenizer": None}, "recipe.tokenizer_revision"),
        ({"facts": replace(FACTS, cache={})}, "recipe.kv_dtype"),
        ({"folder": None}, "artifact.content_digest"),
    ],
)
def test_what_nobody_said_is_named_and_has_no_default(folder, changes, axis):
    found, gap = told(**{"folder": folder, **changes})
    assert found is None
    assert gap is not None
    assert gap.startswith(f"{axis}: not known: ")


@pytest.mark.parametrize(
    ("field", "value", "axis"),
    [
        ("num_hidden_layers", None, "artifact.layer_count"),
        ("model_type", None, "artifact.architecture"),
        ("model_type", "a/b", "artifact.architecture"),
        ("architectures", [], "artifact.architecture"),
        ("architectures", [5], "artifact.architecture"),
        ("architectures", None, "artifact.architecture"),
    ],
)
def test_what_a_config_does_not_say_is_named(folder, field, value, axis):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    assert (told(folder)[1] or "").startswith(f"{axis}: not known: config.json has no ")


@pytest.mark.parametrize("name", ["n_layer", "num_layers"])
def test_layers_have_several_names(folder, name):
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps({**config, name: 7}))
    assert identity(folder).artifact.layer_count == 7


def test_an_engine_says_what_it_is(tmp_path):
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.identity is not None
        assert engine.identity_gap is None
        assert engine.settings["recipe"] == engine.identity.recipe.axes

    on(tmp_path, test)


def test_an_engine_of_which_not_all_is_known_has_no_identity(tmp_path):
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.identity is None
        assert engine.identity_gap is not None
        assert "recipe" not in engine.settings

    on(tmp_path, test, {"device": None})
