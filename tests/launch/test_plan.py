"""Plans: nodes chosen, the command line and environment of each rank, and each command as it would be run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.errors import LaunchError, UsageError
from mesh.launch.plan import PHASES, Options, Plan, make_plan
from mesh.launch.ranks import comparable_argv, comparable_environment
from mesh.launch.selection import Wish, choose
from tests.launch.recipes import COMMIT, DIGEST, PINNED, clusters, recipe_file

LLAMA = 'engine = "llama.cpp"\ndeploy = "tmux"\nmodel = "/m/x.gguf"\nport = 30000\n'


def planned(text: str = PINNED, wish: Wish = Wish(), **options: object) -> Plan:  # noqa: B008
    config, file = clusters(), recipe_file(text)
    return make_plan(config, file, choose(config, file.recipe, wish), run="r1", options=Options(**options))  # type: ignore[arg-type]


def names(wish: Wish, text: str = PINNED, occupied: Sequence[str] = (), down: Sequence[str] = ()) -> list[str]:
    chosen = choose(clusters(), recipe_file(text).recipe, wish, occupied=occupied, down=down)
    return [node.name for node in chosen.nodes]


@pytest.mark.parametrize(
    ("wish", "nodes"),
    [
        (Wish("2nodes"), ["a", "b"]),
        (Wish("4"), ["c", "d"]),
        (Wish("auto"), ["a", "b"]),
        (Wish("2", solo=True), ["a"]),
        (Wish("4nodes", fit=0), ["c", "d", "e", "f"]),
        (Wish("auto", fit=3), ["c", "d", "e"]),
        (Wish("4nodes", fit=3), ["c", "d", "e"]),
    ],
)
def test_nodes_are_chosen_as_asked(wish: Wish, nodes: list[str]) -> None:
    assert names(wish) == nodes


def test_occupied_nodes_are_passed_over_unless_forced_and_down_ones_always() -> None:
    assert names(Wish("auto"), occupied=["a"]) == ["c", "d"]
    assert names(Wish(solo=True), occupied=["a"], down=["b"]) == ["c"]
    assert names(Wish("2nodes", force=True), occupied=["a", "b"]) == ["a", "b"]
    with pytest.raises(LaunchError, match="2 nodes wanted, 1 of 2 free, a being down or occupied"):
        names(Wish("2nodes", force=True), down=["a"])


@pytest.mark.parametrize(
    ("wish", "fault"),
    [
        (Wish("x"), "cluster 'x': unknown; there are 2nodes, 4nodes"),
        (Wish("auto", fit=5), "none has 5 nodes free"),
        (Wish(solo=True, fit=2), "--solo and --fit exclude each other"),
    ],
)
def test_wish_that_cannot_be_met_says_why(wish: Wish, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        names(wish)


def test_fit_scales_tensor_parallelism_and_leaves_the_pipeline() -> None:
    config = clusters()
    recipe = recipe_file(PINNED).recipe
    assert choose(config, recipe, Wish("4nodes", fit=0)).tensor_parallel_size == 4
    assert choose(config, recipe, Wish("4nodes")).tensor_parallel_size == 2
    two_each = recipe_file(PINNED.replace("tensor_parallel_size = 2", "tensor_parallel_size = 4")).recipe
    assert choose(config, two_each, Wish("4nodes", fit=4)).tensor_parallel_size == 8


def test_vllm_on_two_nodes_gets_its_place_in_the_cluster() -> None:
    head, worker = planned(wish=Wish("2nodes")).ranks
    assert list(head.argv) == [
        "vllm", "serve", "org/model", "--revision", COMMIT, "--tensor-parallel-size", "2", "--nnodes", "2",
        "--node-rank", "0", "--master-addr", "200.0.0.1", "--master-port", "29501", "--host", "0.0.0.0", "--port",
        "30000", "--kv-cache-dtype", "fp8",
    ]  # fmt: skip
    assert "--headless" in worker.argv
    assert "--port" not in worker.argv
    assert worker.environment["VLLM_HOST_IP"] == "200.0.0.2"
    assert worker.environment["NCCL_IB_GID_INDEX"] == "auto"
    assert worker.environment["UCX_NET_DEVICES"] == "roce0:1,roce1:1"
    assert worker.environment["GLOO_SOCKET_IFNAME"] == "enp1"
    assert "TERM" not in worker.environment


def test_ranks_of_one_plan_compare_equal_without_their_places() -> None:
    head, worker = planned(wish=Wish("2nodes")).ranks
    assert comparable_argv(head.argv) == comparable_argv(worker.argv)
    assert comparable_environment(head.environment) == comparable_environment(worker.environment)


def test_sglang_on_four_nodes() -> None:
    text = (
        PINNED.replace('"vllm"', '"sglang"')
        .replace("required_nodes = 2", "required_nodes = 4")
        .replace('["--kv-cache-dtype", "fp8"]', "[]")
        .replace("0.32.0", "0.5.23")
        .replace("tensor_parallel_size = 2", "tensor_parallel_size = 4")
    )
    ranks = planned(text, Wish("4nodes")).ranks
    assert list(ranks[3].argv) == [
        "python3", "-m", "sglang.launch_server", "--model-path", "org/model", "--revision", COMMIT, "--tp", "4",
        "--nnodes", "4", "--node-rank", "3", "--dist-init-addr", "200.0.1.9:29501", "--host", "0.0.0.0", "--port",
        "30000",
    ]  # fmt: skip
    assert ranks[3].environment["SGLANG_WORKER_IP"] == "10.0.1.4"
    assert ranks[3].environment["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_NET" not in ranks[3].environment


def test_solo_has_no_flags_of_a_cluster() -> None:
    (rank,) = planned(wish=Wish("2", solo=True)).ranks
    assert not {"--nnodes", "--node-rank", "--master-addr", "--headless"} & set(rank.argv)
    assert "VLLM_HOST_IP" not in rank.environment


def test_ray_starts_its_own_workers() -> None:
    head, worker = planned(PINNED + 'distributed_backend = "ray"\n', Wish("2nodes")).ranks
    assert head.argv[-4:-2] == ("--port", "30000")
    assert "--distributed-executor-backend" in head.argv
    assert worker.argv[:2] == ("ray", "start")
    assert worker.environment["RAY_ADDRESS"] == "200.0.0.1:6379"


def test_environment_of_the_recipe_wins_and_takes_its_port() -> None:
    text = PINNED + '[env]\nNCCL_DEBUG = "INFO"\nPORT = { from = "port" }\n'
    (head, _) = planned(text, Wish("2nodes")).ranks
    assert (head.environment["NCCL_DEBUG"], head.environment["PORT"]) == ("INFO", "30000")


def test_llama_cpp_serves_from_one_node() -> None:
    (rank,) = planned(LLAMA, Wish("4nodes")).ranks
    assert list(rank.argv) == ["llama-server", "--model", "/m/x.gguf", "--host", "0.0.0.0", "--port", "30000"]
    with pytest.raises(UsageError, match="serves from one node"):
        planned(LLAMA, Wish("4nodes", fit=2))


def test_docker_command_says_everything_and_quotes_it() -> None:
    text = PINNED.replace('"fp8"', '"it\'s"') + (
        'shm_size = "64gb"\n[[extra_mounts]]\nalias = "jit"\nhost = "~/j"\ncontainer = "/root/.j"\nread_only = true\n'
        'env = "J"\n[[extra_mounts]]\nhost = "~/a b"\ncontainer = "/ab"\n'
    )
    step = planned(text, Wish("2nodes")).phases["start"][1]
    assert step.node == "b"
    words = shlex.split(step.command.replace('"$HOME"', "/home/u"))
    assert words[:5] == ["docker", "run", "-d", "--name", "mesh-test-1"]
    for pair in (
        ("--label", "mesh.run=r1"), ("--network", "host"), ("--shm-size", "64gb"), ("-e", "MESH_RUN=r1"),
        ("-e", "J=/root/.j"),
        ("-v", "/home/u/.cache/huggingface:/root/.cache/huggingface"), ("-v", "/mnt/jit:/root/.j:ro"),

        ("-v", "/home/u/a b:/ab"), ("--entrypoint", "vllm"), ("--kv-cache-dtype", "it's"),
    ):  # fmt: skip
        assert list(pair) in [words[at : at + 2] for at in range(len(words))], pair
    assert f"registry.example/img@{DIGEST}" in words


def test_mods_run_before_the_engine_in_its_container() -> None:
    text = PINNED + 'entrypoint = ["vllm", "serve"]\n[mods]\ncommands = ["a", { command = "b", on_failure = "warn" }]\n'
    command = planned(text, Wish("2nodes")).phases["start"][0].command
    words = shlex.split(command.replace('"$HOME"', "~"))
    script = words[words.index("-c") + 1]
    assert words[words.index("--entrypoint") + 1] == "sh"
    assert script.startswith("{ a\n} && { { b\n} || echo mods: failed >&2; } && exec vllm serve org/model")


def test_every_phase_is_printed_in_order_and_hooks_keep_theirs() -> None:
    text = PINNED + (
        'before_serve = [{ command = "mine", on_failure = "warn" }]\n'
        '[[staging]]\nkind = "hub-mirror"\ndst = "/mnt/m"\nmin_free = "10G"\n'
    )
    plan = planned(text, Wish("2nodes"), clear=True)
    assert list(plan.phases) == list(PHASES)
    assert [step.what for step in plan.phases["stage"] if step.node == "a"] == ["free space", "stage org/model"]
    hooks = [(step.command, step.on_failure) for step in plan.phases["hooks"] if step.node == "a"]
    assert [hook[1] for hook in hooks] == ["abort", "warn", "abort", "warn"]
    assert hooks[-1][0] == "mine"
    assert planned(text, Wish("2nodes"), stage="skip").phases["stage"] == ()


def test_gid_is_looked_for_on_each_node_unless_it_is_pinned() -> None:
    prepared = planned(wish=Wish("2nodes")).phases["prepare"]
    assert [step.node for step in prepared if step.what == "find the GID index"] == ["a", "b"]
    assert "find the GID index" not in [step.what for step in planned(wish=Wish("4nodes")).phases["prepare"]]


def test_clear_prints_the_exact_command() -> None:
    text = PINNED + '[[extra_mounts]]\nhost = "~/.cache/j i"\ncontainer = "/j"\n'
    clear = [step.command for step in planned(text, Wish("2nodes"), clear=True).steps if step.what == "clear"]
    assert clear == ["sudo rm -rf \"$HOME\"/'.cache/j i'"] * 2


def test_mirror_and_cache_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        planned(wish=Wish("2nodes"), mirror="/m", hf_cache="/c")
    staged = PINNED + '[[staging]]\nkind = "hub-mirror"\ndst = "/mnt/m"\n'
    with pytest.raises(UsageError, match="the recipe stages to /mnt/m"):
        planned(staged, Wish("2nodes"), mirror="/m")


def test_tmux_start_holds_the_environment_and_the_marker(tmp_path: Path) -> None:
    text = LLAMA + 'venv = "~/v"\n[env]\nA = "b c"\n'
    command = planned(text, Wish("2nodes")).phases["start"][0].command
    assert "tmux -L mesh-r1 -f /dev/null new-session -d -s engine sh -c" in command
    body = shlex.split(command)[shlex.split(command).index("-c") + 1]
    assert body.startswith('. "$HOME"/v/bin/activate && exec env -i HOME="$HOME" PATH="$PATH" ')
    assert " 'A=b c' MESH_RUN=r1 llama-server " in body


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_whose_workers_rename_themselves_leave_the_marker_of_the_run_alone(engine: str) -> None:
    text = f'engine = "{engine}"\ndeploy = "tmux"\nmodel = "org/model"\ntensor_parallel_size = 2\n'
    plan = planned(text, Wish("2nodes"))
    assert [rank.environment.get("SPT_NOENV") for rank in plan.ranks] == ["1", "1"]
