from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mesh.errors import ModelFileError
from mesh.identity.folder import SIDE_CONFIGS, SIDE_FILES, folder_files
from mesh.identity.weights import folder_weights, weights_at, weights_digest

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def index(names: list[object]) -> str:
    return json.dumps({"metadata": {}, "weight_map": {f"tensor{i}": name for i, name in enumerate(names)}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two shards, with files beside it that decide nothing."""
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"old")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    for name in SHARDS:
        (tmp_path / name).write_text(name)
    (tmp_path / "model.safetensors.index.json").write_text(index([*SHARDS, SHARDS[0]]))
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        folder_files(folder)
    return str(caught.value)


def test_folder_files_are_those_that_decide_what_is_computed(folder: Path) -> None:
    files = folder_files(folder)
    assert sorted(files) == [
        "additional_chat_templates/tools.jinja",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        *SHARDS,
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert all(path == folder / name for name, path in files.items())
    assert folder_weights(folder).digest == weights_at(folder).digest == weights_digest(files)


def test_folder_with_one_weights_file_needs_no_index(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    assert list(folder_files(tmp_path)) == ["config.json", "model.safetensors"]


def test_folder_digest_follows_links(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for i, (name, path) in enumerate(folder_files(folder).items()):
        blob = tmp_path_factory.mktemp("blobs") / str(i)
        blob.write_bytes(path.read_bytes())
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).symlink_to(blob)
    assert folder_weights(snapshot).digest == folder_weights(folder).digest


def test_folder_without_weights_or_config_is_refused(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)


def test_folder_with_a_missing_or_extra_shard_is_refused_by_name(folder: Path) -> None:
    (folder / "model-00003-of-00003.safetensors").write_text("")
    assert refusal(folder).startswith("model-00003-of-00003.safetensors: extra shard")
    (folder / "model-00003-of-00003.safetensors").unlink()
    (folder / SHARDS[1]).unlink()
    assert refusal(folder).startswith(f"{SHARDS[1]}: missing shard")


def test_folder_with_two_readings_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_text("")
    assert "engines differ on which one they load" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "model.safetensors.index.json: nested deeper than 16"),
        ('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "index.json: key 'a' is there twice"),
        ("{}", "no weight_map"),
        ('{"weight_map": ["a.safetensors"]}', "no weight_map"),
        ("[]", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        (index(["../outside.safetensors"]), "'../outside.safetensors', expected the name"),
        (index(["/etc/passwd"]), "'/etc/passwd', expected the name"),
        (index(["a\u0000.safetensors"]), "expected the name"),
        (index([SHARDS[0], "a\nb.safetensors"]), "'a\\nb.safetensors', expected the name"),
        (index(["a\\b.safetensors"]), "expected the name"),
        (index([".safetensors"]), "'.safetensors', expected the name"),
        (index(["x" * 100]), f"{'x' * 80!r}, expected the name"),
        (index(["x.safetensors.bin"]), "expected the name"),
        (index([7]), "'7', expected the name"),
        (index(["gone.safetensors"]), "extra shard"),
    ],
)
def test_folder_index_names_files_of_its_own_folder_only(folder: Path, content: str, said: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    assert said in refusal(folder)


def test_index_has_a_bound(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    for size, said in ((1 << 26, "not UTF-8 at byte 2"), ((1 << 26) + 1, "over 67108864 bytes")):
        path.write_bytes(b"{}\xff")
        os.truncate(path, size)  # the rest takes no room
        assert refusal(folder) == f"model.safetensors.index.json: {said}"


def test_folder_may_name_its_one_file_in_an_index(folder: Path) -> None:
    for shard in SHARDS:
        (folder / shard).unlink()
    (folder / "model.safetensors").write_text("weights")
    (folder / "model.safetensors.index.json").write_text(index(["model.safetensors", "extra.safetensors"]))
    assert refusal(folder) == "extra.safetensors: missing shard, named in model.safetensors.index.json"
    (folder / "extra.safetensors").write_text("more")
    weights = [name for name in folder_files(folder) if "safetensors" in name]
    assert weights == ["model.safetensors.index.json", "extra.safetensors", "model.safetensors"]


def test_every_file_that_decides_is_taken_where_it_is_there(folder: Path) -> None:
    for name in SIDE_FILES:
        (folder / name).write_text("")
    for name in ("b.jinja", "a.jinja", "notes.txt"):
        (folder / "additional_chat_templates" / name).write_text("")
    (folder / "model-1-of-2.safetensors").write_text("")  # not the name of a shard
    templates = [f"additional_chat_templates/{name}.jinja" for name in ("a", "b", "tools")]
    expected = ["config.json", *SIDE_FILES, *templates, "model.safetensors.index.json", *SHARDS]
    assert list(folder_files(folder)) == expected
    assert set(SIDE_CONFIGS) < set(SIDE_FILES)


def test_first_extra_shard_is_named(folder: Path) -> None:
    for number in (7, 5, 6):
        (folder / f"model-0000{number}-of-00007.safetensors").write_text("")
    assert refusal(folder).startswith("model-00005-of-00007.safetensors: extra shard")
