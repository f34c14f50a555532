"""What runs on each node: the final command line and the complete environment of every rank."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from mesh.errors import UsageError
from mesh.launch.config import LaunchConfig, Nccl, Node
from mesh.launch.recipe import Recipe
from mesh.launch.selection import Chosen
from mesh.launch.validate import plain_env

MASTER_PORT = 29_501
RAY_PORT = 6379
CACHE_IN_CONTAINER = "/root/.cache/huggingface"
# Stands in a dry run for what is found on the node at launch.
AUTO_GID = "auto"

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z0-9_]+)\}\}")
_ENTRYPOINTS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "llama.cpp": ("llama-server",),
    "mesh": ("mesh", "serve"),
}


@dataclass(frozen=True, slots=True)
class Rank:
    """`argv` and `environment` are all that the engine is started with: its recipe, cluster and node put together."""

    rank: int
    node: Node
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def head(self) -> bool:
        return self.rank == 0


def ranks_of(
    config: LaunchConfig,
    recipe: Recipe,
    chosen: Chosen,
    *,
    model: str,
    gid: Mapping[str, str] | None = None,
    placeholders: Mapping[str, Mapping[str, str]] | None = None,
    record: str | None = None,
) -> list[Rank]:
    """One for each chosen node. `model` is the name or path the engine is given. `gid` maps nodes to the index found on
    them, "auto" where it was not looked for; `placeholders` maps nodes to what `{{name}}` stands for there. `record` is
    where the launch record will be, for an engine that names it in its own receipts."""
    if recipe.engine in ("llama.cpp", "mesh") and len(chosen.nodes) > 1:
        raise UsageError(f"{recipe.engine} serves from one node, {len(chosen.nodes)} were chosen")
    nccl = config.nccl.get(chosen.cluster.name)
    ranks = []
    for rank, node in enumerate(chosen.nodes):
        filled = (placeholders or {}).get(node.name)
        argv = [
            *entrypoint_of(recipe),
            *_engine_flags(recipe, chosen, rank, model, config, record),
            *recipe.args,
        ]
        if recipe.distributed_backend == "ray" and len(chosen.nodes) > 1:
            argv = _with_ray(argv, chosen.master_ip, node, head=rank == 0)
        env = _environment(config, recipe, chosen, rank, nccl, (gid or {}).get(node.name, AUTO_GID))
        ranks.append(
            Rank(
                rank,
                node,
                tuple(_fill(word, filled) for word in argv),
                {name: _fill(value, filled) for name, value in sorted(env.items())},
            )
        )
    return ranks


def _with_ray(argv: list[str], master: str, node: Node, *, head: bool) -> list[str]:
    """The engine runs beside Ray's head, which it starts; the other nodes join and wait for work."""
    if not head:
        return ["ray", "start", f"--address={master}:{RAY_PORT}", f"--node-ip-address={node.fabric_ip}", "--block"]
    start = shlex.join(["ray", "start", "--head", f"--port={RAY_PORT}", f"--node-ip-address={node.fabric_ip}"])
    return ["sh", "-c", f'{start} && exec "$@"', "ray-head", *argv]


def entrypoint_of(recipe: Recipe) -> tuple[str, ...]:
    """The words before an engine's own."""
    return tuple(recipe.entrypoint) or _ENTRYPOINTS[recipe.engine]


def program_of(recipe: Recipe) -> str:
    """What is run on every node, whatever starts it there."""
    return entrypoint_of(recipe)[0]


def _fill(text: str, placeholders: Mapping[str, str] | None) -> str:
    if placeholders is None:  # a dry run: what is found on the node stays a name
        return text
    return _PLACEHOLDER.sub(lambda found: placeholders.get(found[1], found[0]), text)


def _engine_flags(
    recipe: Recipe, chosen: Chosen, rank: int, model: str, config: LaunchConfig, record: str | None
) -> list[str]:
    port, nodes = str(recipe.port or config.default_port), len(chosen.nodes)
    served = [] if recipe.served_model_name is None else [_NAME_FLAG[recipe.engine], recipe.served_model_name]
    listen = ["--host", recipe.host, "--port", port]
    revision = (
        []
        if recipe.revision is None or recipe.local_model or recipe.composed_model
        else ["--revision", recipe.revision]
    )
    tp = chosen.tensor_parallel_size
    many = nodes > 1 and not (recipe.solo and nodes == 1)
    match recipe.engine:
        case "vllm":
            pipeline = nodes if recipe.pipeline_parallel_size == 0 else recipe.pipeline_parallel_size
            flags = [model, *revision, *served]
            if many or (tp is not None and not recipe.solo):
                flags += [] if tp is None else ["--tensor-parallel-size", str(tp)]
            if pipeline > 1:
                flags += ["--pipeline-parallel-size", str(pipeline)]
            if many and recipe.distributed_backend == "ray":
                flags += ["--distributed-executor-backend", "ray"]
            elif many:
                flags += [
                    "--nnodes",
                    str(nodes),
                    "--node-rank",
                    str(rank),
                    "--master-addr",
                    chosen.master_ip,
                    "--master-port",
                    str(MASTER_PORT),
                ]
            return flags + (["--headless"] if many and rank else listen)
        case "sglang":
            flags = ["--model-path", model, *revision, *served]
            if many or (tp is not None and not recipe.solo):
                flags += [] if tp is None else ["--tp", str(tp)]
            if many:
                flags += [
                    "--nnodes",
                    str(nodes),
                    "--node-rank",
                    str(rank),
                    "--dist-init-addr",
                    f"{chosen.master_ip}:{MASTER_PORT}",
                ]
            return flags + listen
        case "llama.cpp":
            return [*(["--model", model] if recipe.local_model else ["--hf-repo", model]), *served, *listen]
        case "mesh":
            source = ["--reference"] if model == "reference" else ["--gguf", model]
            return [*source, *served, *listen, *(["--launch-record", record] if record is not None else [])]


_NAME_FLAG = {"vllm": "--served-model-name", "sglang": "--served-model-name", "llama.cpp": "--alias", "mesh": "--name"}


def _environment(
    config: LaunchConfig, recipe: Recipe, chosen: Chosen, rank: int, nccl: Nccl | None, gid: str
) -> dict[str, str]:
    """Defaults, then the cluster's, then the engine's, then the recipe's, each winning over those before."""
    node = chosen.nodes[rank]
    env: dict[str, str] = {}
    if recipe.engine in ("vllm", "sglang"):
        env |= {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "WARN"}
        if recipe.deploy == "tmux":
            env |= {"SPT_NOENV": "1"}  # their workers rename themselves, over the marker by which a stop finds them
        if rank == 0:
            env |= {"TERM": "xterm-256color"} | ({"VLLM_LOGGING_COLOR": "1"} if recipe.engine == "vllm" else {})
        if len(chosen.nodes) > 1:
            env |= {"NCCL_IGNORE_CPU_AFFINITY": "1"}
            env |= {} if nccl is None else _fabric(nccl, gid)
            env["VLLM_HOST_IP" if recipe.engine == "vllm" else "SGLANG_WORKER_IP"] = node.fabric_ip
            if recipe.distributed_backend == "ray":
                env |= {
                    "RAY_ADDRESS": f"{chosen.master_ip}:{RAY_PORT}",
                    "RAY_PORT": str(RAY_PORT),
                    "RAY_NODE_IP_ADDRESS": node.fabric_ip,
                    "RAY_OVERRIDE_NODE_IP_ADDRESS": node.fabric_ip,
                }
    for mount in recipe.extra_mounts:
        if mount.env is not None:
            env[mount.env] = mount.container
    return env | plain_env(recipe, config.default_port)


def _fabric(nccl: Nccl, gid: str) -> dict[str, str]:
    env = {"NCCL_IB_DISABLE": str(nccl.ib_disable)}
    if not nccl.ib_disable:
        env |= {"NCCL_NET": "IB", "NCCL_IB_GID_INDEX": str(gid if nccl.ib_gid_index is None else nccl.ib_gid_index)}
    if nccl.ib_hca is not None:
        env["NCCL_IB_HCA"] = nccl.ib_hca
        env["UCX_NET_DEVICES"] = ",".join(f"{hca}:1" for hca in nccl.ib_hca.split(","))
    if nccl.socket_ifname is not None:
        for name in (
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "TP_SOCKET_IFNAME",
            "MN_IF_NAME",
            "OMPI_MCA_btl_tcp_if_include",
        ):
            env[name] = nccl.socket_ifname
    return env


# What may differ between the ranks of one launch: their place in it.
_PLACE_FLAGS = ("--node-rank", "--headless", "--host", "--port")
_PLACE_NAMES = frozenset(
    (
        "VLLM_HOST_IP",
        "SGLANG_WORKER_IP",
        "RAY_NODE_IP_ADDRESS",
        "RAY_OVERRIDE_NODE_IP_ADDRESS",
        "NCCL_IB_GID_INDEX",
        "TERM",
        "VLLM_LOGGING_COLOR",
    )
)


def comparable_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line without what a rank's place decides."""
    kept, skip = [], False
    for word in argv:
        if skip:
            skip = False
            continue
        if word in _PLACE_FLAGS:
            skip = word != "--headless"
            continue
        kept.append(word)
    return tuple(kept)


def comparable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _PLACE_NAMES}
