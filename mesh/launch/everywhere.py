"""One command on many nodes at once, and what each of them said."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mesh.errors import NodeUnreachable, UsageError
from mesh.launch.commands import Step
from mesh.launch.config import LaunchConfig, Node
from mesh.launch.selection import named
from mesh.launch.ssh import Hosts, Login


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one node. `status` is None where a signal ended the command, or where `lost` says that the node could not be
    asked, or was lost before the end."""

    node: str
    status: int | None
    out: str = ""
    err: str = ""
    lost: str | None = None

    @property
    def good(self) -> bool:
        return self.lost is None and self.status == 0

    @property
    def words(self) -> str:
        if self.lost is not None:
            return self.lost
        return "ended by a signal" if self.status is None else f"status {self.status}"

    def to_map(self) -> dict[str, Any]:
        told: dict[str, Any] = {"node": self.node, "out": self.out, "err": self.err}
        if self.lost is not None:
            return {"node": self.node, "lost": self.lost}
        return told if self.status is None else {**told, "status": self.status}


def chosen_nodes(config: LaunchConfig, cluster: str | None, names: Sequence[str] = ()) -> list[Node]:
    """Those of `names`, else all of the cluster, else all of every cluster, each once. Raises UsageError for a name
    that no node has, or that two different ones have."""
    clusters = config.clusters if cluster is None else [named(config, cluster)]
    if not clusters:
        raise UsageError("no cluster in the configuration: add [[clusters]] or cluster_sources")
    known: dict[str, list[Node]] = {}
    for one in clusters:
        for node in one.by_rank:
            same = known.setdefault(node.name, [])
            if all((node.ssh_ip, node.ssh_port) != (other.ssh_ip, other.ssh_port) for other in same):
                same.append(node)
    for name in names:
        if name not in known:
            raise UsageError(f"node {name[:80]!r}: unknown; there are {', '.join(known)}")
    found = {name: nodes for name, nodes in known.items() if not names or name in names}
    for name, nodes in found.items():
        if len(nodes) > 1:
            raise UsageError(f"node {name}: two clusters mean different machines by it; --cluster says which")
    return [nodes[0] for nodes in found.values()]


def command_of(config: LaunchConfig, words: Sequence[str]) -> str:
    """A command as it is run: one word is an alias, or a line for the node's shell; several are a program and its
    arguments, which no shell reads again."""
    if len(words) == 1:
        return config.exec_aliases.get(words[0], words[0])
    return shlex.join(words)


async def run_everywhere(
    login: Login, nodes: Sequence[Node], steps: Sequence[Step], *, timeout_s: float
) -> list[Outcome]:  # fmt: skip
    """What became of each step, in their order; nodes in parallel. Raises UsageError for a login that says too
    little."""

    async with Hosts(login, nodes) as hosts:

        async def one(step: Step) -> Outcome:
            if step.node in hosts.down:
                return Outcome(step.node, None, lost=str(hosts.down[step.node]))
            try:
                done = await hosts.up[step.node].run(step.command, timeout_s=timeout_s)
            except NodeUnreachable as e:
                return Outcome(step.node, None, lost=str(e))
            return Outcome(step.node, done.status, done.out, done.err)

        return list(await asyncio.gather(*(one(step) for step in steps)))
