"""How clusters, nodes and open runs are now: one look at all of them.

A cluster is up where all its nodes can be reached and nothing that a plug-in knows of blocks it. Of one that is down
nothing more is asked: what an engine of several nodes does without one of them is no news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mesh.errors import HostKeyError, LaunchError, NodeUnreachable
from mesh.launch.config import LaunchConfig, Node
from mesh.launch.looking import HEALTH_PATHS, ask, models_at, ready
from mesh.launch.plugins import NONE, Plugins
from mesh.launch.run_choice import check_opened, every_ledger
from mesh.launch.run_ledger import Run, RunLedger
from mesh.launch.runs import Status, nodes_of, status_of
from mesh.launch.selection import named
from mesh.launch.ssh import Host, Hosts, Login

NodeState = Literal["reachable", "refused", "unreachable"]
Readiness = Literal["ready", "not-ready", "unknown"]


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """`refused`: it answers, and its host key or our login is not accepted."""

    node: str
    address: str
    state: NodeState
    why: str | None = None

    def to_map(self) -> dict[str, Any]:
        return _map(node=self.node, address=self.address, state=self.state, why=self.why)


@dataclass(frozen=True, slots=True)
class RunHealth:
    """`status` is None where the run was not looked at, and `why` says why. Liveness is each node's `process`,
    readiness that of the head."""

    recipe: str
    run: Run
    readiness: Readiness
    why: str
    status: Status | None = None

    @property
    def state(self) -> str:
        return "inconclusive" if self.status is None else self.status.state

    @property
    def good(self) -> bool:
        return self.state == "up" and self.readiness == "ready"

    def to_map(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe, "run": self.run.id, "state": self.state, "readiness": self.readiness,
            "why": self.why, "model": self.run.opened.get("model"), "opened_ns": self.run.opened.get("at_ns"),
            "nodes": [
                {"node": node.name, "rank": rank, "liveness": self._liveness(node.name)}
                for rank, node in enumerate(nodes_of(self.run))
            ],
        }  # fmt: skip

    def _liveness(self, node: str) -> str:
        seen = () if self.status is None else self.status.seen
        return next((one.process for one in seen if one.node == node), "unknown")


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """`blocked` says which of its entities, known to plug-ins, take it down although its nodes may answer."""

    name: str
    nodes: tuple[NodeHealth, ...]
    runs: tuple[RunHealth, ...]
    blocked: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        return not self.blocked and all(node.state == "reachable" for node in self.nodes)

    def to_map(self) -> dict[str, Any]:
        return {
            "cluster": self.name, "up": self.up, "nodes": [one.to_map() for one in self.nodes],
            "runs": [one.to_map() for one in self.runs], **({"blocked": list(self.blocked)} if self.blocked else {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fleet:
    """`damaged` are ledgers, by recipe, of which an open run cannot be looked at, and clusters, by `cluster NAME`, of
    which a plug-in failed."""

    at_ns: int
    clusters: tuple[ClusterHealth, ...]
    damaged: Mapping[str, str]

    @property
    def good(self) -> bool:
        runs = [run for cluster in self.clusters for run in cluster.runs]
        return not self.damaged and all(c.up for c in self.clusters) and all(run.good for run in runs)

    def to_map(self) -> dict[str, Any]:
        return {
            "at_ns": self.at_ns, "clusters": [one.to_map() for one in self.clusters], "damaged": dict(self.damaged)
        }  # fmt: skip


async def survey(
    config: LaunchConfig, ledgers: Path, login: Login, *, now_ns: Callable[[], int], cluster: str | None = None,
    complete: bool = False, plugins: Plugins = NONE,
) -> Fleet:  # fmt: skip
    """Look at all clusters, or at one, and at the runs that their ledgers have open; with `complete` readiness takes
    one real completion. Raises UsageError for a login that says too little, and for an unknown cluster."""
    opened: dict[str, list[tuple[str, Run]]] = {}
    damaged = {}
    for recipe, ledger in every_ledger(ledgers):
        run = ledger.open_run()
        if run is None:
            continue
        try:
            opened.setdefault(str(check_opened(recipe, run).opened["cluster"]), []).append((recipe, run))
        except LaunchError as e:
            damaged[recipe] = str(e)
    wanted = config.clusters if cluster is None else [named(config, cluster)]
    fleets = [(one.name, list(one.by_rank)) for one in wanted]
    blocked: dict[str, list[str]] = {}
    for one in wanted:
        try:
            blocked[one.name] = await asyncio.to_thread(plugins.blocked, config, one)
        except LaunchError as e:
            damaged[f"cluster {one.name}"] = str(e)
    if cluster is None:  # a cluster that the configuration no longer has, and that something still runs on
        known = {name for name, _ in fleets}
        fleets += [(name, list(nodes_of(runs[0][1]))) for name, runs in opened.items() if name not in known]
    looked = await asyncio.gather(*(_cluster(name, nodes, opened.get(name, []), login, ledgers, blocked.get(name, ()),
                                              complete=complete)
                                    for name, nodes in fleets))  # fmt: skip
    return Fleet(now_ns(), tuple(looked), damaged)


async def _cluster(
    name: str,
    nodes: Sequence[Node],
    runs: Sequence[tuple[str, Run]],
    login: Login,
    ledgers: Path,
    blocked: Sequence[str],
    *,
    complete: bool,
) -> ClusterHealth:
    async with Hosts(login, nodes) as hosts:
        states = tuple(_node(node, hosts.down.get(node.name)) for node in nodes)
        lost = [one.node for one in states if one.state != "reachable"]
        if lost or blocked:
            causes = [*([f"without {', '.join(lost)}"] if lost else []), *blocked]
            why = f"not looked at: the cluster is down {'; '.join(causes)}"
            untold = tuple(RunHealth(recipe, run, "unknown", why) for recipe, run in runs)
            return ClusterHealth(name, states, untold, tuple(blocked))
        looked = await asyncio.gather(
            *(_run(recipe, run, login, RunLedger(ledgers / recipe), complete=complete) for recipe, run in runs)
        )
    return ClusterHealth(name, states, tuple(looked))


def _node(node: Node, error: LaunchError | None) -> NodeHealth:
    address = node.ssh_ip if node.ssh_port == 22 else f"{node.ssh_ip}:{node.ssh_port}"
    if error is None:
        return NodeHealth(node.name, address, "reachable")
    refused = isinstance(error, HostKeyError) or not isinstance(error, NodeUnreachable)
    return NodeHealth(node.name, address, "refused" if refused else "unreachable", str(error))


async def _run(recipe: str, run: Run, login: Login, ledger: RunLedger, *, complete: bool) -> RunHealth:
    # readiness first: an engine that became ready in between is then seen to be up as well
    readiness, why = await _readiness(run, login, complete=complete)
    status = await status_of(run, login, ledger)
    if status.state == "stale":
        return RunHealth(recipe, run, "not-ready", status.why, status)
    if status.state == "inconclusive":
        return RunHealth(recipe, run, "unknown", status.why, status)
    return RunHealth(recipe, run, readiness, why, status)


async def _readiness(run: Run, login: Login, *, complete: bool) -> tuple[Readiness, str]:
    head = nodes_of(run)[0]
    async with Hosts(login, [head]) as hosts:
        if head.name in hosts.down:
            return "unknown", str(hosts.down[head.name])
        try:
            answers, why = await readiness_of(hosts.up[head.name], run, complete=complete)
        except NodeUnreachable as e:
            return "unknown", str(e)
    return ("ready" if answers else "not-ready"), why


async def readiness_of(host: Host, run: Run, *, complete: bool) -> tuple[bool, str]:
    """Whether the head is healthy and serves the model, and with `complete` completes something; and what was found.
    Raises NodeUnreachable."""
    engine, model, port = str(run.opened["engine"]), str(run.opened["model"]), int(run.opened["port"])
    if complete:
        return await ready(host, port, engine, model)
    path = HEALTH_PATHS.get(engine, "/health")
    try:
        health = await ask(host, port, "GET", path)
    except ConnectionRefusedError:
        return False, "nobody listens"
    except TimeoutError:
        return False, "listens, and does not answer: a long prefill, or a start"
    except NodeUnreachable:
        raise
    except OSError as e:
        return False, str(e)
    if health.status != 200:
        return False, f"{path} answers {health.status}"
    models = await models_at(host, port)
    if models is None:
        return False, "/v1/models does not answer"
    if model not in models:
        return False, f"serves {', '.join(models) or 'nothing'}, not {model}"
    return True, f"healthy, and serves {model}"


def _map(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
