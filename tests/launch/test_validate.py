"""The contract: what is an error, and that an archived recipe has none. RC-02: tags move and vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.launch.finding import has_error
from mesh.launch.validate import Rules, validate
from tests.launch.recipes import COMMIT, DIGEST, PINNED, recipe_file

OTHER = "sha256:" + "b" * 64


def found(text: str, rules: Rules = Rules(), **where: Path) -> dict[str, str]:  # noqa: B008
    return {one.code: one.level for one in validate(recipe_file(text, **where), rules)}


def with_image(image: str, more: str = "") -> str:
    return PINNED.replace(f"registry.example/img@{DIGEST}", image) + more


def test_pinned_recipe_is_in_order() -> None:
    assert found(PINNED) == {}


@pytest.mark.parametrize("image", ["img:latest", "img", "img:glm53-flash", "img:nightly-01d4"])
def test_rc_02_image_without_a_digest_is_an_error_until_it_is_pinned(image: str) -> None:
    assert found(with_image(image)) == {"image-unpinned": "error"}
    assert found(with_image(image, f'[pins]\nimage = "{DIGEST}"\n')) == {}


def test_rc_02_digest_wins_over_the_tag_and_says_so() -> None:
    text = with_image(f"img:glm53-flash@{DIGEST}")
    assert found(text) == {"image-tag": "note"}
    assert recipe_file(text).recipe.image == f"img@{DIGEST}"


def test_rc_02_pin_that_differs_from_the_recipes_digest_is_shown_and_loses() -> None:
    text = with_image(f"img@{DIGEST}", f'[pins]\nimage = "{OTHER}"\n')
    assert found(text) == {"image-drift": "warning"}
    assert recipe_file(text).recipe.image == f"img@{DIGEST}"


def test_rc_02_comment_that_names_another_image_is_drift() -> None:
    text = f"# built from img:glm53-flash, see docs\n{with_image(f'img@{DIGEST}')}"
    assert found(text) == {"comment-drift": "warning"}
    assert found(f"# the port is host:8000 here\n{PINNED}") == {}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("port = 8000", "port"),
        ("solo = true", "nodes-clash"),
        ('venv = "~/v"', "unused"),
        ('docker_image_dir = "nowhere"', "image-dir"),
        ('before_serve = [{ script = "nope" }]', "script-unknown"),
        ('mods = { commands = ["x"] }', "entrypoint-missing"),
        ('env = { X = "{{draft}}" }', "placeholder"),
        ('env = { HF_TOKEN = "<secret>" }', "placeholder"),
        ('extra_mounts = [{ repo = "a/b", container = "draft" }]', "unused"),
        ('staging = [{ kind = "sparse-rows", dst = "/m" }]', "plug-in"),
        ("pipeline_parallel_size = 3", None),
    ],
)
def test_contract_names_each_fault(change: str, code: str | None) -> None:
    assert list(found(PINNED + change)) == ([] if code is None else [code])


def test_ranks_must_spread_over_the_nodes() -> None:
    assert found(PINNED.replace("required_nodes = 2", "required_nodes = 3")) == {"ranks-clash": "error"}


def test_tmux_refuses_what_only_docker_has() -> None:
    text = f'engine = "vllm"\nengine_version = "0.32.0"\nmodel = "a/b"\nmodel_revision = "{COMMIT}"\ndeploy = "tmux"\n'
    assert found(text) == {}
    more = 'entrypoint = ["vllm", "serve"]\nmods = { commands = ["x"] }\nbuild_profile = "r"\nshm_size = "1g"\n'
    assert found(text + more) == {"docker-only": "error", "unused": "warning"}


def test_model_that_floats_warns_and_one_that_moves_is_an_error() -> None:
    floating = PINNED.replace(f'model_revision = "{COMMIT}"\n', "")
    assert found(floating) == {"model-unpinned": "warning"}
    assert found(PINNED.replace(COMMIT, "main")) == {"model-moves": "error"}
    assert found(PINNED.replace("org/model", f"org/model@{'2' * 40}")) == {"model-clash": "error"}


def test_models_float_is_the_rule_turned_round() -> None:
    rules = Rules(models_float=True)
    assert found(PINNED, rules) == {"model-pinned": "error"}
    assert found(PINNED.replace(f'model_revision = "{COMMIT}"\n', ""), rules) == {}


def test_archived_recipe_has_warnings_only() -> None:
    text = with_image("img:latest", "port = 8000\narchived = true\n")
    findings = validate(recipe_file(text))
    assert {one.code for one in findings} == {"image-unpinned", "port"}
    assert not has_error(findings)


def test_image_folder_is_found_beside_the_recipes(tmp_path: Path) -> None:
    (tmp_path / "docker-images" / "here").mkdir(parents=True)
    assert found(PINNED + 'docker_image_dir = "here"\n', root=tmp_path / "recipes") == {}
