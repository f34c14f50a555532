"""Others' recipes: each key of the source is in the recipe or on the list."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import UsageError
from mesh.launch.foreign import as_text, leaves, read_yaml
from mesh.launch.foreign_command import fill, split
from mesh.launch.foreign_vllm import Choice
from mesh.launch.importer import Imported, import_file, import_recipe
from tests.launch.foreign_examples import EUGR, SPARKRUN, VLLM
from tests.support.corpora import find_corpus, missing
from tests.support.examples import examples

CORPUS = find_corpus("recipes")
FORMS = {"eugr": EUGR, "sparkrun": SPARKRUN, "vllm-recipes": VLLM}


def imported(text: str, **options: object) -> Imported:
    return import_recipe(text.encode(), "example.yaml", **options)  # type: ignore[arg-type]


def found(one: Imported) -> set[tuple[str, str]]:
    return {(finding.code, finding.where) for finding in one.findings}


def test_eugr_recipe_becomes_fields_and_flags() -> None:
    one = imported(EUGR)
    recipe = one.file.recipe
    assert (one.form, recipe.engine, recipe.model, recipe.docker_image) == ("eugr", "vllm", "org/example", "vllm-node")
    assert (recipe.tensor_parallel_size, recipe.required_nodes, recipe.host) == (2, 2, "0.0.0.0")
    assert recipe.args == [
        "--gpu-memory-utilization", "0.8", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}',
    ]  # fmt: skip
    assert recipe.env == {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"}
    assert recipe.port is None
    assert {("dead", "defaults.unread"), ("dead", "env.EMPTY"), ("changed", "port")} <= found(one)


def test_sparkrun_recipe_becomes_fields_and_flags() -> None:
    recipe = (one := imported(SPARKRUN)).file.recipe
    assert (recipe.engine, recipe.required_nodes, recipe.shm_size) == ("sglang", 2, "64gb")
    assert [hook.command for hook in recipe.mods.commands] == ["echo before"]
    assert ("not-converted", "executor_config.user") in found(one)


def test_vllm_recipe_is_of_the_choice_that_was_made() -> None:
    one = imported(VLLM)
    assert one.file.recipe.args == ["--trust-remote-code", "--enable-auto-tool-choice"]
    assert (one.file.recipe.docker_image, one.file.recipe.tensor_parallel_size) == ("vllm/vllm-openai:v1", 8)
    assert {("not-converted", "variants.fp4"), ("not-converted", "surprise.deep.0.er")} <= found(one)
    other = imported(VLLM, choice=Choice("fp4", "amd", features=("spec",))).file.recipe
    assert other.model == "org/example-fp4"
    assert other.args == [
        "--trust-remote-code", "--speculative-config", "{}", "--kv-cache-dtype", "fp8", "--attention-backend", "X",
    ]  # fmt: skip
    assert (other.env, other.docker_image) == ({"VLLM_A": "2"}, "vllm/vllm-openai-rocm:v1")
    with pytest.raises(UsageError, match="variant 'x': there are default, fp4"):
        imported(VLLM, choice=Choice("x"))


def test_contradictions_are_found() -> None:
    text = EUGR.replace("cluster_only: true", "cluster_only: true\nsolo_only: true").replace(
        "vllm serve org/example", "vllm serve org/other"
    )
    codes = found(imported(text))
    assert {("contradictory", "model"), ("contradictory", "solo_only")} <= codes


def test_lever_that_the_named_version_does_not_read_is_found() -> None:
    text = EUGR.replace("VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_ATTENTION_BACKEND")
    assert ("lever-unread", "env.VLLM_ATTENTION_BACKEND") in found(imported(text, engine_version="0.32.0"))


def test_key_that_stands_twice_is_found() -> None:
    assert ("key-twice", "container") in found(imported(EUGR + "container: other\n"))


def test_command_that_is_more_than_an_engine_is_kept_whole_and_said() -> None:
    text = EUGR.replace("-tp {tensor_parallel}", "-tp {tensor_parallel} && echo done")
    one = imported(text)
    assert one.file.recipe.entrypoint[:2] == ["bash", "-c"]
    assert ("command", "command") in found(one)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: b", "of no form that is known: eugr, sparkrun, vllm-recipes"),
        ("a: [", "not valid yaml"),
        ("<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> main\n", "merge-conflict markers in lines 1, 3, 5"),
        ("recipe_version: '1'\nmodel: 1\ncontainer: x\ncommand: y", "model: 1, expected text"),
    ],
)
def test_file_that_is_no_recipe_is_named(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=r"example\.yaml: ") as caught:
        imported(text)
    assert fault in str(caught.value)


def test_small_file_that_is_huge_is_refused() -> None:
    text = "a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(8)
    )
    with pytest.raises(UsageError, match="over 20000 values"):
        imported(EUGR + text)


KEYS = st.text("abcdefghij_", min_size=3, max_size=8).map("x_".__add__)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text("ab ", max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=5,
)
PLACES = {
    "eugr": ((), ("defaults",), ("env",)),
    "sparkrun": ((), ("defaults",), ("env",), ("metadata",), ("executor_config",)),
    "vllm-recipes": ((), ("model",), ("features",), ("variants",), ("hardware_overrides",), ("strategy_overrides",)),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data(), key=KEYS, value=VALUES)
def test_nothing_that_is_put_into_a_source_is_dropped(form: str, data: st.DataObject, key: str, value: object) -> None:
    """Whatever stands wherever: converted, which its value in the recipe shows, or listed by its own name or that of
    what holds it."""
    source = yaml.safe_load(FORMS[form])
    place = data.draw(st.sampled_from(PLACES[form]))
    at = source
    for name in place:
        at = at[name]
    at[key] = value
    try:
        one = import_recipe(yaml.safe_dump(source).encode(), "example.yaml")
    except UsageError:
        return  # said, and nothing made of it
    listed = {finding.where for finding in one.findings}
    for leaf, item in leaves(source):
        assert leaf in one.done
        named = any(".".join(leaf[:end]) in listed for end in range(1, len(leaf) + 1))
        if key in leaf and item not in ({}, []):
            assert named or str(item).lower() in one.text.lower() or place == ("env",)


def unaccounted(one: Imported, source: Mapping[str, Any]) -> list[str]:
    """Words of the source's command that are neither in the recipe nor in what was found. Flags that fields hold are
    not there under their names; their values are."""
    defaults = {str(key): as_text(value) for key, value in (source.get("defaults") or {}).items()}
    text, _, _ = fill(source["command"], {**defaults, "model": source["model"]})
    recipe = one.file.recipe
    have = {*recipe.entrypoint, *recipe.args, *map(str, recipe.env.values())}
    if recipe.entrypoint[:2] == ["bash", "-c"]:  # kept whole, which is said
        have |= set(split(recipe.entrypoint[2]))
    have |= {str(value) for value in recipe.model_dump().values() if isinstance(value, (str, int))}
    told = " ".join(f"{finding.where} {finding.message}" for finding in one.findings)
    return [
        word
        for word in split(text)
        if word not in have and word not in told and word not in HELD
        and not all(part in have or part in told or part in HELD for part in word.split("=", 1))
    ]  # fmt: skip


HELD = (
    "--port", "--host", "-tp", "--tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "--model-path",
    "--served-model-name", "--distributed-executor-backend", "--revision", "--nnodes",
)  # fmt: skip
FLAGS = st.sampled_from([*HELD[:8], "--dtype", "--max-model-len", "--enforce-eager", "--node-rank", "--unknown", "-x"])
WORDS = st.lists(st.tuples(FLAGS, st.sampled_from(["", "7", "auto", "a,b", '{"a":1}', "0.85"])), max_size=5)


@settings(max_examples=examples(60), deadline=None)
@given(more=WORDS, form=st.sampled_from(["eugr", "sparkrun"]))
def test_every_word_of_a_command_is_in_the_recipe_or_listed(more: list[tuple[str, str]], form: str) -> None:
    source = yaml.safe_load(FORMS[form])
    words = [word for flag, value in more for word in (flag, value) if word]
    source["command"] = source["command"].rstrip() + " " + " ".join(shlex.quote(word) for word in words) + "\n"
    try:
        one = import_recipe(yaml.safe_dump(source).encode(), "example.yaml")
    except UsageError:
        return  # said, and nothing made of it
    assert unaccounted(one, source) == []


def test_rc_02_comment_of_the_source_that_names_another_image_is_drift() -> None:
    text = SPARKRUN.replace("runtime: sglang", "runtime: sglang # tested with registry.example/sglang:v0")
    assert ("comment-drift", "line 4") in found(imported(text))


@pytest.mark.deep
@pytest.mark.skipif(CORPUS is None, reason=missing("recipes"))
def test_every_recipe_of_the_corpus_converts_and_every_key_is_accounted_for() -> None:
    """Public files of three forms: none is refused, none loses a key."""
    assert CORPUS is not None
    patterns = (
        "spark-arena_eugr-recipes/recipes/**/*.yaml", "kilork_spark-vllm-docker/recipes/**/*.yaml",
        "spark-arena_recipe-registry/*-recipes/**/*.yaml", "vllm-project_recipes/models/**/*.yaml",
    )  # fmt: skip
    paths = [path for pattern in patterns for path in sorted(CORPUS.glob(pattern))]
    assert paths
    for path in paths:
        one = import_file(path)
        (source,), _ = read_yaml(path.read_bytes(), str(path))
        assert {leaf for leaf, _ in leaves(source)} == set(one.done), path
        assert {finding.code for finding in one.findings} >= {"image-unpinned", "model-unpinned"}, path
        assert "command" not in source or unaccounted(one, source) == [], path
