"""Which nodes a recipe is launched on. Pure: what is free and reachable is an argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mesh.errors import LaunchError, UsageError
from mesh.launch.config import Cluster, LaunchConfig, Node
from mesh.launch.recipe import Recipe

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator asked for. `fit` is a number of nodes, 0 for all of the cluster, None for none asked. `solo`
    None leaves it to the recipe."""

    cluster: str | None = None
    solo: bool | None = None
    fit: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """`nodes` in the order of their ranks, which are counted from 0 anew. `tensor_parallel_size` is the recipe's,
    scaled where --fit asked for it."""

    cluster: Cluster
    nodes: tuple[Node, ...]
    tensor_parallel_size: int | None

    @property
    def master_ip(self) -> str:
        if self.cluster.master_ib_ip is not None and self.nodes[0].rank == 0:
            return self.cluster.master_ib_ip
        return self.nodes[0].fabric_ip


def choose(
    config: LaunchConfig, recipe: Recipe, wish: Wish, *, occupied: Collection[str] = (), down: Collection[str] = ()
) -> Chosen:
    """`occupied` and `down` are names of nodes, or map them to why. Raises UsageError for a wish that no cluster can
    meet, LaunchError where nodes are occupied or down."""
    if not config.clusters:
        raise UsageError("no cluster in the configuration: add [[clusters]] or cluster_sources")
    solo = recipe.solo if wish.solo is None else wish.solo
    if wish.solo and wish.fit is not None:
        raise UsageError("--solo and --fit exclude each other: one node, or as many as fit")
    if solo and wish.fit is None:
        return _solo(config, recipe, wish, occupied, down)
    wanted = _wanted(recipe, wish)
    if wish.cluster is None and len(config.clusters) == 1:
        cluster = config.clusters[0]
    elif wish.cluster in (None, AUTO):
        cluster = _automatic(config, wanted, wish, occupied, down)
    else:
        cluster = named(config, wish.cluster or "")
    return _of(cluster, recipe, wish, wanted, occupied, down)


def named(config: LaunchConfig, name: str) -> Cluster:
    """The cluster of that name, or the only one whose name begins so. Raises UsageError."""
    for cluster in config.clusters:
        if cluster.name == name:
            return cluster
    near = [cluster for cluster in config.clusters if cluster.name.startswith(name)]
    if len(near) == 1:
        return near[0]
    known = ", ".join(cluster.name for cluster in near or config.clusters)
    raise UsageError(f"cluster {name[:80]!r}: {'begins the names of' if near else 'unknown; there are'} {known}")


def _wanted(recipe: Recipe, wish: Wish) -> int | None:
    """How many nodes; None for all of the cluster."""
    if wish.fit is not None:
        return wish.fit or None
    if recipe.engine in ("llama.cpp", "mesh"):
        return 1
    return recipe.required_nodes


def _free(nodes: Sequence[Node], wish: Wish, occupied: Collection[str], down: Collection[str]) -> list[Node]:
    return [node for node in nodes if node.name not in down and (wish.force or node.name not in occupied)]


def _automatic(
    config: LaunchConfig, wanted: int | None, wish: Wish, occupied: Collection[str], down: Collection[str]
) -> Cluster:
    """The smallest cluster that has the nodes free, and an [nccl] table where there is more than one."""
    many = (wanted or 2) > 1
    fitting = [
        cluster
        for cluster in config.clusters
        if len(_free(cluster.nodes, wish, occupied, down)) >= (wanted or len(cluster.nodes))
        and (not many or cluster.name in config.nccl)
    ]
    if not fitting:
        lost = _lost([node for cluster in config.clusters for node in cluster.by_rank], wish, occupied, down)
        asked = "all their nodes" if wanted is None else f"{wanted} nodes" if wanted > 1 else "a node"
        with_nccl = " and an [nccl] table" if many else ""
        raise (LaunchError if lost else UsageError)(f"cluster auto: none has {asked} free{with_nccl}{lost}")
    return min(fitting, key=lambda cluster: (len(cluster.nodes), cluster.name))


def _solo(config: LaunchConfig, recipe: Recipe, wish: Wish, occupied: Collection[str], down: Collection[str]) -> Chosen:
    clusters = config.clusters if wish.cluster in (None, AUTO) else [named(config, wish.cluster or "")]
    for cluster in clusters:
        for node in _free(cluster.by_rank, wish, occupied, down):
            return Chosen(cluster, (node,), recipe.tensor_parallel_size)
    lost = _lost([node for cluster in clusters for node in cluster.by_rank], wish, occupied, down)
    raise LaunchError("--solo: no node of " + ", ".join(cluster.name for cluster in clusters) + f" is free{lost}")


def _of(
    cluster: Cluster, recipe: Recipe, wish: Wish, wanted: int | None, occupied: Collection[str], down: Collection[str]
) -> Chosen:
    free = _free(cluster.by_rank, wish, occupied, down)
    count = wanted or len(cluster.nodes)
    if len(free) < count:
        lost = _lost(cluster.by_rank, wish, occupied, down)
        raise (LaunchError if lost else UsageError)(
            f"cluster {cluster.name}: {count} nodes wanted, {len(free)} of {len(cluster.nodes)} free{lost}"
        )
    return Chosen(cluster, tuple(free[:count]), _scaled(recipe, wish, count))


def _lost(nodes: Sequence[Node], wish: Wish, occupied: Collection[str], down: Collection[str]) -> str:
    """Which nodes cannot be had, each with why where that is known."""
    free = _free(nodes, wish, occupied, down)
    names = list(dict.fromkeys(node.name for node in nodes if node not in free))
    told = []
    for name in names:
        reasons = down if name in down else occupied
        told.append(f"{name} ({reasons[name]})" if isinstance(reasons, Mapping) else name)
    return f", {', '.join(told)} being down or occupied" if told else ""


def _scaled(recipe: Recipe, wish: Wish, count: int) -> int | None:
    if wish.fit is None:
        return recipe.tensor_parallel_size
    pipeline = max(recipe.pipeline_parallel_size, 1)
    per_node = ((recipe.tensor_parallel_size or 1) * pipeline) // (
        recipe.required_nodes or recipe.tensor_parallel_size or 1
    )
    return max(per_node, 1) * count
