"""Whether nodes are free: what runs on them, who has the port, who holds memory of their accelerators.

Asked before nodes are chosen. What could not be looked at is said, and taken for neither free nor occupied by itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from mesh.errors import LaunchError, NodeFailed, NodeUnreachable
from mesh.launch.commands import LABEL, Step
from mesh.launch.config import Cluster, LaunchConfig, Node
from mesh.launch.looking import GPU_UNSEEN
from mesh.launch.recipe import RUN_MARKER, Recipe
from mesh.launch.selection import AUTO, Chosen, Wish, choose, named
from mesh.launch.ssh import Host, Hosts

Note = Callable[[str], None]
GPU_SHARE_PERCENT = 10  # of its memory, held by processes that nobody sees
_RUNS = (
    "for t in grep tr sort; do command -v $t >/dev/null || echo unknown runs: no $t; done; "
    f"grep -hzoE '^{RUN_MARKER}=.*' /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sort -u | "
    f'while IFS== read -r k r; do [ -d "$HOME/.mesh/$r" ] && echo "run $r"; done'
)
_CONTAINERS = (
    "command -v docker >/dev/null && "
    f"docker ps --filter label={LABEL} --format 'container {{{{.Label \"{LABEL}\"}}}}' 2>/dev/null | sort -u"
)
_GPU = (
    "command -v nvidia-smi >/dev/null && { "
    "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits | sed 's/^/gpu /'; "
    "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv,noheader,nounits | sed 's/^/memory /'; }; "
    f"command -v nvidia-smi >/dev/null || ! {GPU_UNSEEN} || echo unknown GPUs: no nvidia-smi"
)


def occupancy_step(node: Node, port: int) -> Step:
    """Prints a line for each thing that occupies the node: `run ID`, `container ID`, `port taken`, `gpu PID, NAME,
    MIB`, `memory INDEX, USED, TOTAL`."""
    table = (
        f"awk '$4 == \"0A\" && $2 ~ /:{port:04X}$/ {{f = 1}} END {{exit !f}}' /proc/net/tcp /proc/net/tcp6 2>/dev/null"
    )
    return Step(
        node.name,
        "occupancy",
        f"{_RUNS}; {_CONTAINERS}; "
        f"if [ -r /proc/net/tcp ] && command -v awk >/dev/null; then {table} && echo port taken; "
        f"else echo unknown port; fi; {_GPU}; true",
    )


def occupied_by(printed: str, port: int) -> tuple[list[str], list[str]]:
    """What occupies a node, in words, and what could not be looked at, of what `occupancy_step` printed."""
    occupied, unknown = [], []
    seen = False
    for line in printed.splitlines():
        what, _, rest = line.partition(" ")
        match what:
            case "run" | "container":
                text = f"run {rest.strip()} is on it"
                occupied += [text] if text not in occupied else []
            case "port":
                occupied.append(f"port {port} is taken already")
            case "gpu":
                words = [word.strip() for word in rest.split(",")]
                seen = True
                held = f", {words[2]} MiB" if len(words) > 2 and words[2].isdigit() else ""
                occupied.append(f"process {words[0]} computes on its GPU ({words[1] if len(words) > 1 else '?'}{held})")
            case "memory":
                words = [word.strip() for word in rest.split(",")]
                if len(words) == 3 and words[1].isdigit() and words[2].isdigit() and not seen:
                    used, total = int(words[1]), int(words[2])
                    if total and used * 100 > GPU_SHARE_PERCENT * total:
                        occupied.append(f"{used} of {total} MiB of GPU {words[0]} are held by nobody that is seen")
            case "unknown":
                unknown.append(rest)
    return occupied, unknown


def candidates(config: LaunchConfig, recipe: Recipe, wish: Wish) -> list[Node]:
    """The nodes that a choice may fall on: each once. Raises UsageError for a cluster that is not there."""
    return list({node.name: node for cluster in clusters_of(config, wish) for node in cluster.by_rank}.values())


def clusters_of(config: LaunchConfig, wish: Wish) -> list[Cluster]:
    return config.clusters if wish.cluster in (None, AUTO) else [named(config, wish.cluster or "")]


@dataclass(slots=True)
class Survey:
    """What was found. `occupied` and `down` map nodes to why."""

    occupied: dict[str, str] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)


async def survey(hosts: Hosts, port: int, *, note: Note, blocked: Mapping[str, str] | None = None) -> Survey:
    """Ask every node that is up, in parallel. `blocked` are nodes of clusters that are down as a whole, and why."""
    found = Survey(down={**(blocked or {}), **{name: str(error) for name, error in hosts.down.items()}})
    for why in found.down.values():
        note(why)

    async def ask(host: Host) -> tuple[str, str | None, str | None]:
        name = host.node.name
        try:
            done = await host.run(occupancy_step(host.node, port).command)
        except NodeUnreachable as e:
            return name, None, str(e)
        occupied, unknown = occupied_by(done.out, port)
        for what in unknown:
            note(f"{name}: {what}: could not be looked at")
        return name, "; ".join(occupied) or None, None

    for name, occupied, lost in await asyncio.gather(*(ask(host) for host in hosts.up.values())):
        if occupied is not None:
            found.occupied[name] = occupied
        if lost is not None:
            found.down[name] = lost
    return found


class Claims:
    """Nodes that this process makes a launch ready for: another one of this state folder then looks elsewhere. Locks of
    the system's own, so that a launcher that dies claims nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held, self._stack = folder, set[str](), ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._held.clear()

    def take(self, nodes: Sequence[Node]) -> list[Node]:
        """Claim all of them, or none: then those that somebody else has."""
        self._folder.mkdir(parents=True, exist_ok=True)
        taken, others = ExitStack(), []
        for node in sorted(nodes, key=_address):
            file = taken.enter_context((self._folder / _address(node)).open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                others.append(node)
        if others:
            taken.close()
            return others
        self._stack.push(taken)
        self._held |= {_address(node) for node in nodes}
        return []


def _address(node: Node) -> str:
    return f"{node.ssh_ip}_{node.ssh_port}".replace(os.sep, "_")


def pick(
    config: LaunchConfig, recipe: Recipe, wish: Wish, found: Survey, claims: Claims, errors: Mapping[str, LaunchError],
) -> Chosen:  # fmt: skip
    """Choose among the nodes that are free, and claim them. `errors` say why nodes are down. Raises LaunchError where
    none are to be had: the node's own where one that is down is all that is missing."""
    while True:
        try:
            chosen = choose(config, recipe, wish, occupied=found.occupied, down=found.down)
        except LaunchError as e:
            lost = [name for name in errors if name in {node.name for node in candidates(config, recipe, wish)}]
            if lost and not any(name in found.occupied for name in lost) and not (found.occupied and not wish.force):
                if len(lost) == 1:
                    raise errors[lost[0]] from None
                told = {name: str(errors[name]) for name in lost}
                raise NodeFailed(
                    "reached: " + "; ".join(f"{name}: {why}" for name, why in sorted(told.items())), nodes=told
                ) from e
            raise
        others = [] if wish.force else claims.take(chosen.nodes)
        if not others:
            return chosen
        found.occupied |= {node.name: "another launch is being made ready for it" for node in others}
