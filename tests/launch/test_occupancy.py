"""Which nodes are free: what a node says of itself, claims of launches in the making, and the choice after both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import HostKeyError, LaunchError, NodeFailed, NodeUnreachable
from mesh.launch.config import Node
from mesh.launch.occupancy import Claims, Survey, candidates, occupancy_step, occupied_by, pick
from mesh.launch.selection import Wish
from tests.launch.recipes import PINNED, clusters, recipe_file

NODE = Node(name="a", ssh_ip="h", rank=0)
RECIPE = recipe_file(PINNED).recipe
SLEEPER = "import sys, time; print('up', flush=True); sys.stdin.read()"


def printed(home: Path, port: int) -> str:
    env = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", occupancy_step(NODE, port).command], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(home: Path, name: str, text: str) -> None:
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (home / "bin" / name).chmod(0o755)


def test_node_that_does_nothing_is_free(tmp_path: Path) -> None:
    for name in ("docker", "nvidia-smi"):
        program(tmp_path, name, "true")
    assert occupied_by(printed(tmp_path, 1), 1) == ([], [])


def test_port_that_something_listens_on_occupies(tmp_path: Path) -> None:
    for name in ("docker", "nvidia-smi"):
        program(tmp_path, name, "true")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert occupied_by(printed(tmp_path, port), port) == ([f"port {port} is taken already"], [])


def test_what_a_node_without_the_tools_cannot_say_is_not_known(tmp_path: Path) -> None:
    command = occupancy_step(NODE, 1).command.replace("/proc/driver/nvidia", str(tmp_path))
    (tmp_path / "version").touch()  # a driver of GPUs, whose tool is not there
    (tmp_path / "bin").mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False,
        env={"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin"},
    )  # fmt: skip
    occupied, unknown = occupied_by(done.stdout, 1)
    assert occupied == []
    assert unknown == ["runs: no grep", "runs: no tr", "runs: no sort", "port", "GPUs: no nvidia-smi"]


def test_process_of_a_run_of_this_home_occupies_and_of_another_does_not(tmp_path: Path) -> None:
    """Hosts may share a kernel: a run is on the one whose home has its folder."""
    run = f"r-{os.getpid()}-{tmp_path.name}"
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], env={**os.environ, "MESH_RUN": run}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert f"run {run}" not in printed(tmp_path, 1)
        (tmp_path / ".mesh" / run).mkdir(parents=True)
        assert f"run {run} is on it" in occupied_by(printed(tmp_path, 1), 1)[0]
    assert f"run {run}" not in printed(tmp_path, 1)


def test_containers_and_gpu_processes_occupy(tmp_path: Path) -> None:
    program(tmp_path, "docker", 'echo "container r9"')
    program(
        tmp_path, "nvidia-smi",
        'case "$1" in *compute-apps*) echo "4711, python3, 8192" ;; *) echo "0, 8200, 81559" ;; esac',
    )  # fmt: skip
    assert occupied_by(printed(tmp_path, 1), 1)[0] == [
        "run r9 is on it",
        "process 4711 computes on its GPU (python3, 8192 MiB)",
    ]


@pytest.mark.parametrize(
    ("memory", "occupied"),
    [
        ("0, 60000, 81559", ["60000 of 81559 MiB of GPU 0 are held by nobody that is seen"]),
        ("0, 500, 81559", []),
        ("0, [N/A], [N/A]", []),
    ],
)
def test_gpu_memory_that_nobody_holds_any_more_occupies(tmp_path: Path, memory: str, occupied: list[str]) -> None:
    program(tmp_path, "docker", "true")
    program(tmp_path, "nvidia-smi", f'case "$1" in *compute-apps*) ;; *) echo "{memory}" ;; esac')
    assert occupied_by(printed(tmp_path, 1), 1)[0] == occupied


def test_what_could_not_be_looked_at_is_neither_free_nor_occupied() -> None:
    assert occupied_by("unknown port\n", 1) == ([], ["port"])


def test_candidates_are_of_the_named_cluster_or_of_all() -> None:
    config = clusters()
    assert [node.name for node in candidates(config, RECIPE, Wish("2"))] == ["a", "b"]
    assert len(candidates(config, RECIPE, Wish("auto"))) == 6


def picked(found: Survey, claims: Claims, wish: Wish, errors: dict[str, LaunchError] | None = None) -> list[str]:
    return [node.name for node in pick(clusters(), RECIPE, wish, found, claims, errors or {}).nodes]


def test_nodes_that_another_launch_is_made_ready_for_are_passed_over(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as two, Claims(tmp_path) as three:
        assert picked(Survey(), one, Wish("auto")) == ["a", "b"]
        assert picked(Survey(), two, Wish("auto")) == ["c", "d"]
        assert picked(Survey(), three, Wish("4nodes")) == ["e", "f"]
        with Claims(tmp_path) as last, pytest.raises(LaunchError, match=r"a \(another launch is being made ready for"):
            picked(Survey(), last, Wish("2nodes"))
        with Claims(tmp_path) as forced:
            assert picked(Survey(), forced, Wish("2nodes", force=True)) == ["a", "b"]
    with Claims(tmp_path) as after:
        assert picked(Survey(), after, Wish("2nodes")) == ["a", "b"]


def test_claim_of_a_launcher_that_was_killed_is_none(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from mesh.launch.occupancy import Claims\n"
        "from mesh.launch.config import Node\n"
        "Claims(Path(sys.argv[1])).take([Node(name='a', ssh_ip='10.0.0.1', rank=0)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with Claims(tmp_path) as claims:
        assert picked(Survey(), claims, Wish("2nodes")) == ["a", "b"]


def test_why_no_node_is_to_be_had_is_told_for_each(tmp_path: Path) -> None:
    found = Survey({"a": "port 30000 is taken already"}, {"b": "no route"})
    with Claims(tmp_path) as claims:
        with pytest.raises(LaunchError, match=r"a \(port 30000 is taken already\), b \(no route\) being down or occ"):
            picked(found, claims, Wish("2nodes"), {"b": NodeUnreachable("no route")})
        assert picked(Survey({"a": "busy"}), claims, Wish("2nodes", force=True)) == ["a", "b"]
        with pytest.raises(LaunchError, match=r"is free, a \(busy\), b \(no route\) being"):
            picked(Survey({"a": "busy"}, {"b": "no route"}), claims, Wish("2nodes", solo=True))


@pytest.mark.parametrize("error", [NodeUnreachable("node a: no route"), HostKeyError("node a: another key")])
def test_node_that_is_down_is_told_in_its_own_words_where_it_is_all_that_is_missing(
    tmp_path: Path, error: LaunchError
) -> None:
    with Claims(tmp_path) as claims:
        with pytest.raises(type(error), match=str(error)):
            picked(Survey(down={"a": str(error)}), claims, Wish("2nodes"), {"a": error})
        both = {"a": error, "b": NodeUnreachable("node b: no route")}
        with pytest.raises(NodeFailed) as caught:
            picked(Survey(down={name: str(one) for name, one in both.items()}), claims, Wish("2nodes"), both)
        assert set(caught.value.nodes) == {"a", "b"}
        assert picked(Survey(down={"c": "x"}), claims, Wish("4nodes"), {"c": error}) == ["d", "e"]
