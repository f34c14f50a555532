"""Plug-ins, as installed packages name them: staging of a lab's own, entities that take a cluster down, power."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mesh.errors import LaunchError, UsageError
from mesh.launch.config import LaunchConfig
from mesh.launch.plan import make_plan
from mesh.launch.plugins import GROUP, NONE, Plugins, load_plugins
from mesh.launch.selection import Wish, choose
from mesh.launch.validate import Rules, validate
from tests.launch.lab_plugin import Lab
from tests.launch.recipes import PINNED, clusters, recipe_file

LAB = Plugins({"lab": Lab()})
SPARSE = PINNED + '[[staging]]\nkind = "sparse-rows"\ndst = "/nvme"\nformat = "packed"\n'


def config(folder: Path) -> LaunchConfig:
    return clusters(
        f'[home_assistant]\nfolder = "{folder}"\n[[clusters]]\nname = "lab"\n'
        'nodes = [{ name = "a", ssh_ip = "10.0.0.1", rank = 0, entity = "plug.a" }]\n'
        'extra_entities = ["switch.net", { entity = "switch.fan", blocks = false }]\n'
    )


def point(value: str, name: str = "lab") -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_plug_in_is_found_by_the_entry_point_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "lab_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = tests.launch.lab_plugin:Lab\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    plugins = load_plugins()
    assert isinstance(plugins.by_name["mine"], Lab)
    assert plugins.tables == {"home_assistant"}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("tests.launch.lab_plugin:broken", "plug-in lab .*: RuntimeError: no token"),
        ("tests.launch.nowhere:Lab", "plug-in lab .*: ModuleNotFoundError"),
        ("builtins:dict", "a dict, expected a Plugin"),
    ],
)
def test_plug_in_that_is_none_is_named(value: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        load_plugins([point(value)])


def test_staging_of_a_plug_in_is_a_fault_without_it_and_commands_with_it() -> None:
    file = recipe_file(SPARSE)
    assert [one.code for one in validate(file)] == ["plug-in"]
    assert validate(file, Rules(staging=LAB.staging)) == []
    chosen = choose(clusters(), file.recipe, Wish("2nodes"))
    steps = make_plan(clusters(), file, chosen, run="r", plugins=LAB).phases["stage"]
    assert [(step.node, step.what, step.command) for step in steps] == [
        ("a", "sparse-rows: rows", "pack org/model 0/2 packed >/nvme/rows"),
        ("b", "sparse-rows: rows", "pack org/model 1/2 packed >/nvme/rows"),
    ]
    with pytest.raises(UsageError, match="sparse-rows is a plug-in's, and none is there"):
        make_plan(clusters(), file, chosen, run="r")


def test_cluster_is_down_while_a_blocking_entity_is_off_and_unknown_blocks_nothing(tmp_path: Path) -> None:
    made = config(tmp_path)
    cluster = made.clusters[0]
    assert LAB.blocked(made, cluster) == []
    (tmp_path / "switch.fan").write_text("off")
    (tmp_path / "switch.net").write_text("on")
    assert LAB.blocked(made, cluster) == []
    (tmp_path / "switch.net").write_text("off")
    assert LAB.blocked(made, cluster) == ["switch.net is off"]
    assert NONE.blocked(made, cluster) == []
    (tmp_path / "switch.net").write_text("nonsense")
    assert LAB.states(made, ["switch.net"]) == {"switch.net": "unknown"}


def test_fault_of_a_plug_in_is_told_under_its_name() -> None:
    with pytest.raises(LaunchError, match="plug-in lab: KeyError: 'home_assistant'"):
        LAB.states(clusters(), ["switch.net"])


def test_power_is_printed_and_done_and_refused_where_nothing_switches_it(tmp_path: Path) -> None:
    made = config(tmp_path)
    assert LAB.power_steps(made, made.clusters[0], True) == ["lab: plug.a on"]
    assert list(tmp_path.iterdir()) == []
    said: list[str] = []
    LAB.power(made, made.clusters[0], False, said.append)
    assert (tmp_path / "plug.a").read_text() == "off"
    assert said == ["plug.a is switched"]
    with pytest.raises(UsageError, match="power: no plug-in switches it"):
        NONE.power(made, made.clusters[0], True, said.append)
