"""`mesh launch`: what is printed, and with which exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Mesh
from tests.launch.foreign_examples import COMPOSE_ENV, ENV_FILE, EUGR, RUNNER, STATEFUL
from tests.launch.recipes import CLUSTERS, PINNED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration and the recipes good, bad and old."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "launch.toml").write_text(CLUSTERS)
    for name, text in (
        ("good", PINNED),
        ("bad", PINNED + "port = 1\n"),
        ("old", PINNED + "port = 1\narchived = true\n"),
    ):
        (tmp_path / "recipes" / name).mkdir(parents=True)
        (tmp_path / "recipes" / name / "recipe.toml").write_text(text)
    return tmp_path


def test_validate_fails_for_an_active_recipe_and_only_warns_for_an_archived_one(mesh: Mesh, here: Path) -> None:
    assert mesh("launch", "validate", "good").code == 0
    assert mesh("launch", "validate", "old").code == 0
    result = mesh("launch", "validate", "--json")
    assert result.code == 10
    told = {one["recipe"]: [f["level"] for f in one["findings"]] for one in result.json["recipes"]}
    assert told == {"bad": ["error"], "good": [], "old": ["warning"]}
    assert "port: 1, expected the one of every recipe, 30000" in mesh("launch", "validate", "bad").out


def test_plan_prints_the_commands_of_each_node_and_runs_none(mesh: Mesh, here: Path) -> None:
    result = mesh("launch", "plan", "good", "--cluster", "2")
    assert result.code == 0
    assert result.out.startswith("# good on 2nodes: a, b; nothing is run\n")
    assert result.out.count("docker run -d") == 2
    told = mesh("launch", "plan", "good", "--cluster", "2", "--json").json
    assert [rank["node"] for rank in told["ranks"]] == ["a", "b"]
    assert mesh("launch", "plan", "bad", "--cluster", "2").code == 10
    assert mesh("launch", "plan", "good", "--cluster", "x").code == 2


def test_pin_writes_what_is_found_in_a_folder_and_a_dry_run_nothing(mesh: Mesh, here: Path) -> None:
    recipe = here / "recipes" / "good" / "recipe.toml"
    folder = here / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    argv = ("launch", "pin", "good", "--model-dir", folder)
    assert mesh(*argv, "--dry-run").code == 0
    assert recipe.read_text() == PINNED
    result = mesh(*argv, "--json")
    assert result.json["written"] is True
    assert "config.json" in result.json["model_files"]
    assert recipe.read_text().startswith(PINNED)
    assert mesh("launch", "validate", "good").code == 0


def test_pin_without_a_network_says_so(mesh: Mesh, here: Path) -> None:
    result = mesh("launch", "pin", "good", "--no-image", "--hub", "http://127.0.0.1:1")
    assert result.code == 3
    assert "this needs the network" in result.err


def test_config_says_where_each_value_came_from(mesh: Mesh, here: Path) -> None:
    told = mesh("launch", "config", "--json").json
    assert told["origins"]["ssh_user"] == "launch.toml"
    assert told["origins"]["default_port"] == "default"
    assert "cluster 2nodes: 2 nodes  # launch.toml" in mesh("launch", "config").out
    assert mesh("launch", "config", "--config", here / "nowhere.toml").code == 3


def test_import_writes_the_recipe_and_lists_what_is_wrong(mesh: Mesh, here: Path) -> None:
    (here / "one.yaml").write_text(EUGR)
    result = mesh("launch", "import", "one.yaml", "--out", "recipes")
    assert result.code == 10
    assert "# error: docker_image: vllm-node: no tag floats" in result.out
    assert mesh("launch", "validate", "one").code == 10
    assert mesh("launch", "import", "one.yaml", "--out", "recipes").code == 3


def test_import_compares_three_views_of_one_server(mesh: Mesh, here: Path) -> None:
    for name, text in (("compose.yaml", COMPOSE_ENV), ("x.env", ENV_FILE), ("runner.yaml", RUNNER)):
        (here / name).write_text(text)
    result = mesh("launch", "import", "compose.yaml", "runner.yaml", "--env-file", "x.env", "--compare")
    assert result.code == 10
    assert "max_num_seqs: 6 | 12 | 6" in result.out
    assert "VLLM_ENGINE_READY_TIMEOUT_S: '3600': set but unused" in result.out


def test_import_lints_a_manifest(mesh: Mesh, here: Path) -> None:
    (here / "two.yaml").write_text(STATEFUL)
    (here / "bad.yaml").write_text("<<<<<<< HEAD\n" + STATEFUL)
    assert "port 8080 has no listener" in mesh("launch", "import", "two.yaml").out
    result = mesh("launch", "import", "bad.yaml")
    assert (result.code, result.err) == (2, "mesh launch: bad.yaml: merge-conflict markers in lines 1\n")
