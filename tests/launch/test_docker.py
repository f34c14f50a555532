"""Docker's command lines, and what is made of its answers."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from mesh.errors import RanksDiffer, UsageError
from mesh.launch.commands import compose_steps, docker_run, mods_argv
from mesh.launch.comparing import check_ranks
from mesh.launch.config import Node
from mesh.launch.looking import container_end
from mesh.launch.plan import Plan, make_plan
from mesh.launch.recipe import ComposedModel
from mesh.launch.selection import Wish, choose
from mesh.launch.ssh import Done
from mesh.launch.staging import composed_weights_step
from mesh.launch.validate import validate
from tests.launch.recipes import CLUSTERS, COMMIT, DIGEST, PINNED, clusters, recipe_file

LLAMA = f"""
engine = "llama.cpp"
model = "/models/q.gguf"
docker_image = "ghcr.io/ggml-org/llama.cpp@{DIGEST}"
entrypoint = ["/app/llama-server"]
args = ["--ctx-size", "4096"]
"""


def plan(text: str, wish: Wish, more: str = "") -> Plan:
    config, file = clusters(CLUSTERS + more), recipe_file(text)
    return make_plan(config, file, choose(config, file.recipe, wish), run="r1")


def line(text: str, wish: Wish, node: int = 0, more: str = "") -> list[str]:
    return shlex.split(plan(text, wish, more).phases["start"][node].command.replace('"$HOME"', "/home/u"))


def test_llama_cpp_in_docker_to_the_word() -> None:
    assert line(LLAMA, Wish("2nodes")) == [
        "docker", "run", "-d", "--name", "mesh-test-0", "--label", "mesh.run=r1", "--label", "mesh.recipe=test",
        "--label", "mesh.rank=0", "--gpus", "all", "--ipc", "host", "--ulimit", "memlock=-1", "-p", "30000:30000",
        "-e", "MESH_RUN=r1", "-v", "/home/u/.cache/huggingface:/root/.cache/huggingface",
        "-v", "/models/q.gguf:/models/q.gguf:ro", "--entrypoint", "/app/llama-server",
        f"ghcr.io/ggml-org/llama.cpp@{DIGEST}", "--model", "/models/q.gguf", "--host", "0.0.0.0", "--port", "30000",
        "--ctx-size", "4096",
    ]  # fmt: skip


def test_vllm_in_docker_on_two_nodes_to_the_word() -> None:
    assert line(PINNED, Wish("2nodes"), 1) == [
        "docker", "run", "-d", "--name", "mesh-test-1", "--label", "mesh.run=r1", "--label", "mesh.recipe=test",
        "--label", "mesh.rank=1", "--gpus", "all", "--ipc", "host", "--ulimit", "memlock=-1",
        "--network", "host", "--device", "/dev/infiniband", "-e", "MESH_RUN=r1",
        "-e", "GLOO_SOCKET_IFNAME=enp1", "-e", "MN_IF_NAME=enp1", "-e", "NCCL_DEBUG=WARN", "-e", "NCCL_IB_DISABLE=0",
        "-e", "NCCL_IB_GID_INDEX=auto", "-e", "NCCL_IB_HCA=roce0,roce1", "-e", "NCCL_IGNORE_CPU_AFFINITY=1",
        "-e", "NCCL_NET=IB", "-e", "NCCL_SOCKET_IFNAME=enp1", "-e", "OMPI_MCA_btl_tcp_if_include=enp1",
        "-e", "OMP_NUM_THREADS=4", "-e", "TP_SOCKET_IFNAME=enp1", "-e", "UCX_NET_DEVICES=roce0:1,roce1:1",
        "-e", "VLLM_HOST_IP=200.0.0.2", "-v", "/home/u/.cache/huggingface:/root/.cache/huggingface",
        "--entrypoint", "vllm", f"registry.example/img@{DIGEST}", "serve", "org/model", "--revision", COMMIT,
        "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "200.0.0.1",
        "--master-port", "29501", "--headless", "--kv-cache-dtype", "fp8",
    ]  # fmt: skip


def test_sglang_in_docker_on_one_node_to_the_word() -> None:
    text = (
        f'engine = "sglang"\nmodel = "org/model"\nmodel_revision = "{COMMIT}"\nshm_size = "16g"\n'
        f'docker_image = "lmsysorg/sglang@{DIGEST}"\nrequired_nodes = 1\ntensor_parallel_size = 2\n'
    )
    assert line(text, Wish("4nodes")) == [
        "docker", "run", "-d", "--name", "mesh-test-0", "--label", "mesh.run=r1", "--label", "mesh.recipe=test",
        "--label", "mesh.rank=0", "--gpus", "all", "--ipc", "host", "--ulimit", "memlock=-1", "-p", "30000:30000",
        "--shm-size", "16g", "-e", "MESH_RUN=r1", "-e", "NCCL_DEBUG=WARN", "-e", "OMP_NUM_THREADS=4",
        "-e", "TERM=xterm-256color", "-v", "/home/u/.cache/huggingface:/root/.cache/huggingface",
        "--entrypoint", "python3", f"lmsysorg/sglang@{DIGEST}", "-m", "sglang.launch_server", "--model-path",
        "org/model", "--revision", COMMIT, "--tp", "2", "--host", "0.0.0.0", "--port", "30000",
    ]  # fmt: skip


def test_fabric_device_is_asked_for_where_the_cluster_has_one() -> None:
    assert "/dev/infiniband" in line(PINNED, Wish("2nodes"))
    assert "/dev/infiniband" not in line(PINNED, Wish("4nodes"))  # ib_disable = 1


def test_node_without_an_accelerator_is_asked_for_none() -> None:
    cpu = '[[clusters]]\nname = "cpu"\nnodes = [{ name = "z", ssh_ip = "10.0.2.1", rank = 0, gpus = 0 }]\n'
    assert "--gpus" not in line(LLAMA, Wish("cpu"), more=cpu)
    assert "--gpus" in line(LLAMA, Wish("2nodes"), more=cpu)


def test_local_model_is_mounted_once_and_has_to_be_an_absolute_path() -> None:
    mounted = LLAMA + '[[extra_mounts]]\nhost = "/data"\ncontainer = "/models"\n'
    words = line(mounted, Wish("2nodes"))
    assert "/data:/models" in words
    assert "/models/q.gguf:/models/q.gguf:ro" not in words
    codes = [one.code for one in validate(recipe_file(LLAMA.replace("/models/", "~/models/")))]
    assert "model-path" in codes


def test_ray_is_started_by_the_head_and_joined_by_the_others() -> None:
    text = PINNED + 'distributed_backend = "ray"\n'
    head, worker = line(text, Wish("2nodes"), 0), line(text, Wish("2nodes"), 1)
    at = head.index("--entrypoint")
    assert head[at : at + 6] == [
        "--entrypoint", "sh", f"registry.example/img@{DIGEST}", "-c",
        'ray start --head --port=6379 --node-ip-address=200.0.0.1 && exec "$@"', "ray-head",
    ]  # fmt: skip
    assert head[at + 6 : at + 9] == ["vllm", "serve", "org/model"]
    assert worker[-3:] == ["--address=200.0.0.1:6379", "--node-ip-address=200.0.0.2", "--block"]


@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [
        ('"true"', '"true"', True),
        ('"false"', '"true"', False),
        ('"false"', '{ command = "true", on_failure = "warn" }', False),
        ('"true"', '{ command = "false", on_failure = "warn" }', True),
        ('{ command = "false", on_failure = "warn" }', '"false"', False),
        ('{ command = "exit 3", on_failure = "warn" }', '"true"', False),
    ],
)
def test_mod_that_fails_ends_the_container_unless_it_only_warns(first: str, second: str, runs: bool) -> None:
    text = PINNED + f'entrypoint = ["echo"]\n[mods]\ncommands = [{first}, {second}]\n'
    argv = mods_argv(recipe_file(text).recipe, ["echo", "started"])
    done = subprocess.run(["sh", *argv], capture_output=True, text=True, check=False)
    assert (done.stdout == "started\n") == runs
    assert (done.returncode == 0) == runs


@pytest.mark.parametrize(
    ("done", "how"),
    [
        (Done(0, "exited 137 true\n", ""), "its container ended (status 137, for want of memory)"),
        (Done(0, "exited 1 false\n", ""), "its container ended (status 1)"),
        (Done(0, "dead 0 false\n", ""), "its container ended (status 0)"),
        (Done(1, "", "Error: No such object: mesh-r-0\n"), "its container is gone"),
        (Done(0, "running 0 false\n", ""), None),
        (Done(0, "paused 0 false\n", ""), None),
        (Done(0, "created 0 false\n", ""), None),
        (Done(1, "", "permission denied\n"), None),
        (Done(127, "", "docker: not found\n"), None),
        (Done(0, "", ""), None),
    ],
)
def test_end_of_a_container_is_told_and_what_nobody_can_say_is_none(done: Done, how: str | None) -> None:
    assert container_end(done) == how


def test_image_of_ours_is_held_to_its_folder_on_each_node(tmp_path: Path) -> None:
    folder = tmp_path / "docker-images" / "r"
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM base\n")
    text = PINNED.replace(f"registry.example/img@{DIGEST}", "eng")
    config, file = clusters(), recipe_file(text, "r", tmp_path / "recipes")
    assert {one.code: one.level for one in validate(file)} == {"image-built": "note"}
    made = make_plan(config, file, choose(config, file.recipe, Wish("2nodes")), run="r1")
    assert made.image is not None
    assert made.image.startswith("eng:")
    steps = [step for step in made.phases["prepare"] if step.what == "image content"]
    assert [step.node for step in steps] == ["a", "b"]
    assert "docker pull" not in steps[0].command
    (folder / "versions.env").write_text("UNREAD=1\n")
    assert {one.code: one.level for one in validate(file)} == {"image-build": "error"}
    with pytest.raises(UsageError, match="UNREAD: no ARG"):
        make_plan(config, file, choose(config, file.recipe, Wish("2nodes")), run="r1")


def test_image_content_step_prints_the_checksum_or_says_what_to_do(tmp_path: Path) -> None:
    from mesh.launch.commands import built_step

    (tmp_path / "docker").write_text('#!/bin/sh\n[ -e "$HOME/sum" ] && cat "$HOME/sum"\n')
    (tmp_path / "docker").chmod(0o755)
    node = Node(name="a", ssh_ip="h", rank=0)

    def run() -> subprocess.CompletedProcess[str]:
        env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = built_step(node, "eng:1", "cafe", pull=False).command
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=env)

    assert "eng:1: not on this node: mesh launch image build, or copy" in run().stderr
    (tmp_path / "sum").write_text("beef\n")
    assert "eng:1: built from checksum beef, its folder is cafe" in run().stderr
    (tmp_path / "sum").write_text("cafe\n")
    assert (run().returncode, run().stdout) == (0, "cafe\n")


def test_docker_run_of_a_rank_alone_needs_no_cluster() -> None:
    made = plan(PINNED, Wish("2", solo=True))
    step = docker_run(
        clusters(), made.file.recipe, made.ranks[0], run="r1", image="i", nodes=1, cache="/c", name="x", fabric=False
    )
    assert "--network" not in step.command
    assert "-v /c:/root/.cache/huggingface" in step.command


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    root = tmp_path / "cache" / "hub" / "models--org--model"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return tmp_path / "cache"


def test_composed_folder_is_marked_by_what_its_links_lead_to(cache: Path, tmp_path: Path) -> None:
    node, run = Node(name="a", ssh_ip="h", rank=0), f"marks-{os.getpid()}-{tmp_path.name}"
    composed = ComposedModel.model_validate(
        {"mount": "/m", "sources": [{"repo": "org/model"}], "files": [{"name": "sub/x.json", "content": "1"}]}
    )

    def sh(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    try:
        assert sh(compose_steps(node, composed, run, str(cache))[0].command).returncode == 0
        look = composed_weights_step(node, run, str(cache)).command
        first = sh(look).stdout
        assert [one.split()[1] for one in first.splitlines()] == ["config.json", "sub/x.json"]
        config = cache / "hub" / "models--org--model" / "snapshots" / COMMIT / "config.json"
        config.write_text("[]")
        assert sh(look).stdout.splitlines()[0] != first.splitlines()[0]
        assert sh(look).stdout.splitlines()[1] == first.splitlines()[1]
        config.unlink()
        assert "config.json: leads nowhere" in sh(look).stderr
        nothing = ComposedModel.model_validate(
            {"mount": "/m", "sources": [{"repo": "org/model", "glob": "L*.safetensors"}]}
        )
        done = sh(compose_steps(node, nothing, run, str(cache))[0].command)
        assert (done.returncode, done.stderr) == (1, "org/model: nothing matches L*.safetensors\n")
    finally:
        subprocess.run(["rm", "-rf", f"/tmp/mesh-composed-{run}"], check=True)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_composed_file_stays_in_its_folder(name: str) -> None:
    files = f'files = [{{ name = "{name}", content = "" }}]\n'
    text = PINNED + '[composed_model]\nmount = "/m"\nsources = [{ repo = "a/b" }]\n' + files
    with pytest.raises(UsageError, match="leads out of the folder"):
        recipe_file(text)


def test_rc_02_c_tag_of_several_platforms_that_resolves_otherwise_on_each_host_is_refused() -> None:
    """One index, two images: what a tag hides, the image's id on each node does not."""
    made = plan(PINNED, Wish("2nodes"))
    index = f'["registry.example/img@{DIGEST}"]'
    with pytest.raises(RanksDiffer, match=r"image: rank 1 on b and rank 0 on a: 'sha256:arm .*not 'sha256:amd"):
        check_ranks(made.ranks, {"a": {"image": f"sha256:amd {index}"}, "b": {"image": f"sha256:arm {index}"}})
