"""`mesh launch`: images, plug-ins, dry runs and the configuration file, as far as no node is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mesh.launch.plugins import GROUP
from mesh.launch.run_ledger import RunLedger
from tests.cli.conftest import Mesh
from tests.launch.recipes import CLUSTERS, PINNED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a configuration and the recipe good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "launch.toml").write_text(CLUSTERS)
    (tmp_path / "recipes" / "good").mkdir(parents=True)
    (tmp_path / "recipes" / "good" / "recipe.toml").write_text(PINNED)
    return tmp_path


@pytest.fixture
def lab(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = here / "site" / "lab_plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nlab = tests.launch.lab_plugin:Lab\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(here / "site")])
    (here / "launch.toml").write_text(
        f'[home_assistant]\nfolder = "{here}"\n[[clusters]]\nname = "lab"\n'
        'nodes = [{ name = "a", ssh_ip = "10.0.0.1", rank = 0, entity = "plug.a" }]\n'
    )
    return here


def test_plug_ins_are_listed_and_power_wants_the_name_once_more(mesh: Mesh, lab: Path) -> None:
    assert mesh("launch", "plugins").out == "lab: [home_assistant], staging sparse-rows, power\n"
    assert "plug-ins alone" not in mesh("launch", "config").err
    assert mesh("launch", "power", "off", "lab", "--dry-run").out == "lab: plug.a off\n"
    result = mesh("launch", "power", "off", "lab")
    assert result.code == 2
    assert "it may be serving: --confirm lab does it" in result.err
    assert not (lab / "plug.a").exists()
    assert mesh("launch", "power", "off", "lab", "--confirm", "lab", "--json").json["steps"] == ["lab: plug.a off"]
    assert (lab / "plug.a").read_text() == "off"


def test_without_plug_ins_what_is_for_them_is_said(mesh: Mesh, here: Path) -> None:
    assert mesh("launch", "plugins", "--json").json["plugins"] == []
    assert mesh("launch", "power", "on", "2nodes", "--dry-run").code == 2
    (here / "launch.toml").write_text(CLUSTERS + "[mikrotik]\nx = 1\n")
    assert "mikrotik: read by plug-ins alone, and none is there" in mesh("launch", "config").err


def test_image_is_shown_and_built_on_paper(mesh: Mesh, here: Path) -> None:
    folder = here / "docker-images" / "good"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM base\nARG TORCH\n")
    (folder / "versions.env").write_text("TORCH=2.10\n")
    shown = mesh("launch", "image", "show", "good")
    assert "TORCH = '2.10'  # versions.env" in shown.out
    checksum = mesh("launch", "image", "show", "good", "--json").json["checksum"]
    dry = mesh("launch", "image", "build", "good", "--node", "a", "--dry-run")
    assert dry.code == 0
    assert f"--label mesh.checksum={checksum} --build-arg TORCH=2.10" in dry.out
    assert mesh("launch", "image", "build", "good", "--dry-run").err.endswith("say which of a, b, c, d, e, f\n")
    assert "no [registry]" in mesh("launch", "image", "push", "good", "--node", "a").err
    (here / "known_hosts").write_text("10.0.0.2 ssh-ed25519 AAAA\n")
    copied = mesh("launch", "image", "copy", "good", "--node", "a", "--dry-run").err
    assert "named by its digest alone, by which each node pulls it itself" in copied


def test_plan_has_every_phase_of_a_launch(mesh: Mesh, here: Path) -> None:
    steps = mesh("launch", "plan", "good", "--cluster", "2", "--json").json["steps"]
    phases = list(dict.fromkeys(step["phase"] for step in steps))
    assert phases == ["choose", "prepare", "look", "hooks", "record", "start", "wait", "compare"]
    assert mesh("launch", "serve", "good", "--cluster", "2", "--dry-run", "--json").json["steps"] == steps


def test_stop_on_paper_sweeps_verifies_and_runs_the_hooks(mesh: Mesh, here: Path) -> None:
    assert mesh("launch", "stop", "good", "--dry-run").code == 3
    recipe = here / "recipes" / "good" / "recipe.toml"
    recipe.write_text(PINNED + 'after_stop = ["echo after"]\n')
    nodes = [{"name": name, "ssh_ip": f"10.0.0.{rank + 1}", "rank": rank} for rank, name in enumerate("ab")]
    RunLedger(here / "launches" / "good").append(
        {"event": "opened", "run": "r1", "at_ns": 1, "cluster": "2nodes", "recipe": "good", "port": 30000,
         "deploy": "docker", "engine": "vllm", "model": "org/model", "nodes": nodes}
    )  # fmt: skip
    steps = mesh("launch", "stop", "good", "--dry-run", "--json").json["steps"]
    assert [step["phase"] for step in steps if step["node"] == "b"] == [
        "look", "look", "end", "sweep", "sweep", "clean", "verify", "verify", "verify", "after_stop",
    ]  # fmt: skip
    assert [step["node"] for step in steps if step["what"] == "port"] == ["a"]
    out = mesh("launch", "stop", "good", "--dry-run", "--drain-s", "7").out
    assert 'do docker stop -t 7 "$c"' in out
    assert "echo after" in out


def test_first_configuration_is_written_once_and_found_from_anywhere(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    assert "no launch.toml here" in mesh("launch", "config", "--path").err
    written = mesh("launch", "config", "--init")
    assert written.out == f"{tmp_path}/user/servemesh/launch.toml\n"
    assert mesh("launch", "config", "--init").code == 3
    assert mesh("launch", "config", "--path").out == written.out
    assert mesh("launch", "config", "--json").json["values"]["ssh_key_path"] == "~/.ssh/id_ed25519"
    (tmp_path / "empty" / "launch.toml").write_text("")
    assert mesh("launch", "config", "--path").out == "launch.toml\n"


@pytest.mark.parametrize("action", ["stop", "close", "status", "runs"])
@pytest.mark.parametrize("name", ["good", "../good", "x/recipe.toml"])
def test_recipe_that_never_ran_is_told_so_and_leaves_no_trace(mesh: Mesh, here: Path, action: str, name: str) -> None:
    before = sorted(here.rglob("*"))
    result = mesh("launch", action, name)
    assert result.code == 3
    assert "never launched from here: no ledger in launches" in result.err
    assert sorted(here.rglob("*")) == before
    assert mesh("launch", action, "a b").code == 2


def test_unknown_script_is_told_by_a_plan_too(mesh: Mesh, here: Path) -> None:
    recipe = here / "recipes" / "good" / "recipe.toml"
    recipe.write_text(f'before_serve = [{{ script = "nope" }}]\n{PINNED}')
    result = mesh("launch", "plan", "good", "--cluster", "2nodes")
    assert result.code == 2
    assert "no script 'nope'; there are drop_caches, " in result.err


def test_damaged_ledger_of_one_recipe_hides_no_other(mesh: Mesh, here: Path) -> None:
    for name in ("bad", "worse"):
        RunLedger(here / "launches" / name).append({"event": "opened", "run": "r1", "verified": []})
        RunLedger(here / "launches" / name).append({"event": "closed", "run": "r1", "verified": [], "at_ns": 1})
    result = mesh("launch", "status")
    assert result.code == 10
    assert [line.split(" (run")[0] for line in result.out.splitlines()] == [
        f"{name}: inconclusive: recipe {name}: run r1: damaged in runs.jsonl: port missing" for name in ("bad", "worse")
    ]
    assert "Traceback" not in mesh("launch", "runs", "--offline").err


def test_recipe_that_cannot_be_read_hides_no_other_where_all_are_validated(mesh: Mesh, here: Path) -> None:
    (here / "recipes" / "bad").mkdir()
    (here / "recipes" / "bad" / "recipe.toml").write_bytes(b"junk [")
    result = mesh("launch", "validate")
    assert result.code == 10
    assert "bad: 1 error, 0 warnings\n  error: recipe.toml: not valid toml: " in result.out
    assert "good: in order" in result.out
    assert mesh("launch", "validate", "bad").code == 2
    result = mesh("launch", "report")
    assert result.code == 0
    assert "bad: recipes/bad/recipe.toml: not valid toml: " in result.out
    assert mesh("launch", "report", "bad").code == 2
