"""Runs in containers looked at over real sshd: their logs, and what runs held to what was launched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mesh.launch.config import LaunchConfig, Loaded
from mesh.launch.plan import make_plan
from mesh.launch.recipe import RecipeFile
from mesh.launch.record import keep, make_record
from mesh.launch.run_ledger import RunLedger
from mesh.launch.selection import Wish, choose
from mesh.schema.envelope import SigningKey

if TYPE_CHECKING:
    from tests.sshd.hosts import Site

RUN = "20300101T000000-aaaaaa"
IMAGE = "sha256:" + "d" * 64
RECIPE = f'engine = "vllm"\nmodel = "org/model"\ndocker_image = "registry.example/img@sha256:{"a" * 64}"\n'
# Has one container for each rank, of the run alone, as `inspect` in its home folder tells of it.
DOCKER = r"""#!/bin/sh
cd "$HOME" || exit 1
case "$1" in
  ps) case "$*" in *mesh.run=RUN*mesh.rank=RANK*) [ -e gone ] || echo c0ffee ;; esac ;;
  logs) [ "$3" = 5 ] && echo "to stdout" && echo "to stderr" >&2 ;;
  inspect) printf '%s\n' "$3" >form; cat inspect ;;
esac
"""


@pytest.fixture
def docked(two: Site) -> Site:
    """A run over both nodes, as its launch left it, whose containers are as they were launched."""
    from mesh.launch.config import load_config

    two.recipe("boxed", RECIPE)
    loaded: Loaded = load_config(two.folder / "launch.toml")
    config: LaunchConfig = loaded.config
    file = RecipeFile.load(two.folder / "recipes" / "boxed")
    plan = make_plan(config, file, choose(config, file.recipe, Wish()), run=RUN)
    facts = {node.name: {"image": f"{IMAGE} []"} for node in config.clusters[0].nodes}
    record = make_record(plan, loaded, facts, model="org/model", launched_ns=1, key=SigningKey(b"\x07" * 32))
    ledger = RunLedger(two.folder / "launches" / "boxed")
    keep(ledger.folder / RUN, record, plan, loaded, facts)
    ledger.append(
        {
            "event": "opened", "run": RUN, "at_ns": 1, "cluster": "here", "recipe": "boxed",
            "recipe_sha256": file.digest, "port": two.port, "record": record.digest.text,
            "deploy": "docker", "engine": "vllm", "model": "org/model",
            "nodes": [node.model_dump(mode="json", exclude_none=True) for node in config.clusters[0].nodes],
        }
    )  # fmt: skip
    for rank, sshd in zip(plan.ranks, two.sshds, strict=True):
        shim = sshd.folder / "home" / "bin" / "docker"
        shim.write_text(DOCKER.replace("RUN", RUN).replace("RANK", str(rank.rank)))
        shim.chmod(0o755)
        said = [IMAGE, {"mesh.checksum": "c" * 12}, rank.argv[0], rank.argv[1:],
                [f"{name}={value}" for name, value in rank.environment.items()]]  # fmt: skip
        (sshd.folder / "home" / "inspect").write_text("\n".join(map(json.dumps, said)) + "\n")
    return two


def report(site: Site) -> dict[str, Any]:
    (told,) = json.loads(site.mesh("report", "boxed", "--live", "--json").stdout)["recipes"]
    return dict(told)


def test_containers_are_held_to_the_record_of_their_launch(docked: Site) -> None:
    told = report(docked)
    assert (told["drift"], told["unknown"]) == ([], [])
    home = docked.sshds[1].folder / "home"
    assert (home / "form").read_text().splitlines()[0] == "{{json .Image}}"
    lines = (home / "inspect").read_text().splitlines()
    other = [lines[0].replace("d", "e"), *lines[1:4], json.dumps([*json.loads(lines[4])[:-1], "NCCL_DEBUG=INFO"])]
    (home / "inspect").write_text("\n".join(other) + "\n")
    drift = report(docked)["drift"]
    assert drift[0].startswith("rank 1 on n1: image: sha256:eeee")
    assert any("environment: " in line for line in drift[1:])
    assert all(line.startswith("rank 1 on n1: ") for line in drift)
    (home / "gone").touch()
    told = report(docked)
    assert (told["drift"], told["unknown"]) == ([], ["rank 1 on n1: engine's container: no container of it runs"])


def test_logs_of_containers_are_read_and_followed_by_node(docked: Site) -> None:
    done = docked.mesh("logs", "boxed", "--tail", "5")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0, ["n0: to stderr", "n0: to stdout", "n1: to stderr", "n1: to stdout"]
    )  # fmt: skip
    followed = docked.mesh("logs", "boxed", "--tail", "5", "--follow", "--node", "n1")
    assert sorted(followed.stdout.splitlines()) == ["n1: to stderr", "n1: to stdout"]
    (docked.sshds[1].folder / "home" / "gone").touch()
    gone = docked.mesh("logs", "boxed", "--tail", "5")
    assert gone.returncode == 10
    assert f"n1: no container of run {RUN}, rank 1: one that was stopped is removed" in gone.stdout
