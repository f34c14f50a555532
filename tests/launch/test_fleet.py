"""One look at all clusters, where no node can be asked: what is down, why, and what is left unsaid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mesh.errors import LaunchError, UsageError
from mesh.launch.fleet import Fleet, survey
from mesh.launch.live import read_live, write_live
from mesh.launch.plugins import NONE, Plugins
from mesh.launch.ssh import Login
from tests.launch.lab_plugin import Lab
from tests.launch.recipes import clusters

PAIR = '{ name = "a", ssh_ip = "127.0.0.1", rank = 0 }, { name = "b", ssh_ip = "127.0.0.2", rank = 1 }'
RUN = {
    "event": "opened", "run": "r-1", "at_ns": 1, "cluster": "lab", "port": 1, "deploy": "tmux", "engine": "vllm",
    "model": "m", "nodes": [{"name": "a", "ssh_ip": "127.0.0.1", "rank": 0}],
}  # fmt: skip


def looked(tmp_path: Path, plugins: Plugins = NONE, cluster: str | None = None) -> Fleet:
    """At nodes of which no key is pinned, so that nothing is connected to."""
    config = clusters(
        f'[home_assistant]\nfolder = "{tmp_path}"\n[[clusters]]\nname = "lab"\nnodes = [{PAIR}]\n'
        'extra_entities = ["switch.net", { entity = "switch.fan", blocks = false }]\n'
    )
    login = Login("u", tmp_path / "key", "")
    return asyncio.run(survey(config, tmp_path / "launches", login, now_ns=lambda: 7, plugins=plugins, cluster=cluster))


def opened(tmp_path: Path, recipe: str, **said: object) -> None:
    (tmp_path / "launches" / recipe).mkdir(parents=True)
    (tmp_path / "launches" / recipe / "runs.jsonl").write_text(json.dumps({**RUN, **said}) + "\n")


def test_node_of_which_no_key_is_pinned_is_refused_and_its_run_not_looked_at(tmp_path: Path) -> None:
    opened(tmp_path, "good")
    fleet = looked(tmp_path)
    (cluster,) = fleet.clusters
    assert (cluster.up, fleet.good) == (False, False)
    assert [node.state for node in cluster.nodes] == ["refused", "refused"]
    (run,) = cluster.runs
    assert (run.state, run.readiness) == ("inconclusive", "unknown")
    assert run.why == "not looked at: the cluster is down without a, b"
    assert looked(tmp_path, cluster="la").clusters[0].runs[0].recipe == "good"
    with pytest.raises(UsageError, match="cluster 'x': unknown"):
        looked(tmp_path, cluster="x")


def test_entity_that_is_off_takes_a_cluster_down_and_one_that_blocks_nothing_does_not(tmp_path: Path) -> None:
    for entity in ("switch.net", "switch.fan"):
        (tmp_path / entity).write_text("off")
    (cluster,) = looked(tmp_path, Plugins({"lab": Lab()})).clusters
    assert cluster.blocked == ("switch.net is off",)
    assert cluster.to_map()["blocked"] == ["switch.net is off"]
    assert looked(tmp_path).clusters[0].blocked == ()


def test_damaged_ledger_and_failing_plug_in_are_named(tmp_path: Path) -> None:
    class Failing(Lab):
        def entity_states(self, config: object, entities: object) -> dict[str, str]:
            raise OSError("no route to the hub")

    opened(tmp_path, "bad", port="x")
    fleet = looked(tmp_path, Plugins({"lab": Failing()}))
    assert fleet.damaged == {
        "bad": "recipe bad: run r-1: damaged in runs.jsonl: port is 'x', expected int",
        "cluster lab": "plug-in lab: OSError: no route to the hub",
    }


def test_run_on_a_cluster_that_is_no_longer_configured_is_looked_at_too(tmp_path: Path) -> None:
    opened(tmp_path, "old", cluster="sold")
    assert [cluster.name for cluster in looked(tmp_path).clusters] == ["lab", "sold"]


def test_look_is_kept_whole_and_read_back(tmp_path: Path) -> None:
    assert read_live(tmp_path) is None
    fleet = looked(tmp_path)
    write_live(tmp_path / "made", fleet, 10)
    assert read_live(tmp_path / "made") == {"v": "mesh-launch-live/1", "every_s": 10, **fleet.to_map()}
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["live.json"]
    (tmp_path / "made" / "live.json").write_text('{"v": "mesh-launch-live/1", "at_ns": "now"}')
    with pytest.raises(LaunchError, match="damaged: at_ns is no int"):
        read_live(tmp_path / "made")
