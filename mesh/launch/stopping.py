"""Stopping a run on every node at once, and seeing that nothing is left: process, session, port, GPU memory."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mesh.errors import NodeUnreachable
from mesh.launch.commands import LABEL, SESSION, at_home, composed_folder, socket_name, stopped_path
from mesh.launch.config import Node
from mesh.launch.looking import (
    container_pids_step,
    containers_step,
    could_look,
    gpu_step,
    marked_step,
    port_step,
    session_step,
    with_marker,
)
from mesh.launch.ssh import Host, Hosts

POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. `drain_s` from TERM until what is left is swept, `kill_s` from the sweep's TERM to its KILL, `verify_s`
    until nothing is left at all."""

    drain_s: float = 20.0
    kill_s: float = 5.0
    verify_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """What is stopped. `port` is looked at on the head alone: nobody else listens on it."""

    run: str
    nodes: tuple[Node, ...]
    port: int
    deploy: str


def signal_command(run: str, signal: str) -> str:
    """Signal every process with the run's marker: its children's children too, and those that left their session."""
    return f'{with_marker(run)} kill -{signal} "${{p#/proc/}}" 2>/dev/null; done; true'


def end_command(run: str, deploy: str, drain_s: float) -> str:
    """The first, gentle end: TERM to the engine itself, which tells its own children."""
    if deploy == "docker":
        ids = f"docker ps -q --filter label={LABEL}={shlex.quote(run)}"
        return f'for c in $({ids}); do docker stop -t {int(drain_s)} "$c" >/dev/null; done'
    pane = f"tmux -L {shlex.quote(socket_name(run))} list-panes -t {SESSION} -F '#{{pane_pid}}' 2>/dev/null"
    late = f"mkdir -p {at_home(f'~/.mesh/{run}')} && : >{at_home(stopped_path(run))}"
    return f'{late}; for p in $({pane}); do kill -TERM "$p" 2>/dev/null; done; true'


def clean_command(run: str, deploy: str) -> str:
    """Take away the session or containers, and what was composed for the run."""
    folder = shlex.quote(composed_folder(run))
    if deploy == "docker":
        ids = f"docker ps -aq --filter label={LABEL}={shlex.quote(run)}"
        return f'for c in $({ids}); do docker rm -f "$c" >/dev/null; done; rm -rf {folder}'
    return f"tmux -L {shlex.quote(socket_name(run))} kill-server 2>/dev/null; rm -rf {folder}; true"


async def stop_everywhere(
    hosts: Hosts, target: Target, deadlines: Deadlines = Deadlines(), note: Callable[[str], None] = lambda _: None
) -> dict[str, str]:  # fmt: skip
    """Stop the run on all nodes in parallel. What is wrong, by node: empty where each was seen to be free of it."""
    problems = {name: str(error) for name, error in hosts.down.items()}
    ends = await asyncio.gather(
        *(
            _stop(hosts.up[node.name], target, deadlines, head=node is target.nodes[0], note=note)
            for node in target.nodes
            if node.name in hosts.up
        )
    )
    return problems | {name: problem for name, problem in ends if problem is not None}


async def _stop(
    host: Host, target: Target, deadlines: Deadlines, *, head: bool, note: Callable[[str], None]
) -> tuple[str, str | None]:
    name, run = host.node.name, target.run
    try:
        was = set((await host.run(marked_step(name, run).command)).out.split()[::2])
        if target.deploy == "docker":
            was |= set((await host.run(container_pids_step(name, run).command)).out.split())
        await host.run(end_command(run, target.deploy, deadlines.drain_s), timeout_s=deadlines.drain_s + 60)
        if not await _gone(host, run, deadlines.drain_s):
            note(f"{name}: not gone {deadlines.drain_s:g} s after TERM: the rest of the run is swept")
            await host.run(signal_command(run, "TERM"))
            if not await _gone(host, run, deadlines.kill_s):
                await host.run(signal_command(run, "KILL"))
        await host.run(clean_command(run, target.deploy))
        loop = asyncio.get_running_loop()
        until = loop.time() + deadlines.verify_s
        while True:
            left = await _left(host, target, was, head=head)
            if left is None or loop.time() >= until:
                return name, left
            await asyncio.sleep(POLL_S)
    except NodeUnreachable as e:
        return name, str(e)


async def _gone(host: Host, run: str, within_s: float) -> bool:
    """Whether no process of the run is left before the time is over. Could-not-look counts as not gone."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while True:
        done = await host.run(marked_step(host.node.name, run).command)
        if could_look(done) and not done.out.strip():
            return True
        if loop.time() >= until:
            return False
        await asyncio.sleep(POLL_S)


async def _left(host: Host, target: Target, was: set[str], *, head: bool) -> str | None:
    """What is left of the run on this node, in words; None where nothing is. `was` are the processes it once had."""
    name, run = host.node.name, target.run
    marked = await host.run(marked_step(name, run).command)
    if not could_look(marked):
        return f"could not check for processes: {marked.last}"
    pids = [line.split()[0] for line in marked.out.splitlines() if line.strip()]
    if pids:
        return f"processes {', '.join(pids)} are left"
    step = containers_step(name, run) if target.deploy == "docker" else session_step(name, run)
    there = await host.run(step.command)
    if not could_look(there) or (target.deploy == "docker" and there.status != 0):
        return f"could not check for a {step.what[:-1] if target.deploy == 'docker' else step.what}: {there.last}"
    if there.out.strip() not in ("", "none"):
        return f"{step.what}: {there.out.strip()[:200]}"
    if head:
        port = await host.run(port_step(name, target.port).command)
        if not could_look(port):
            return f"could not check port {target.port}: {port.last}"
        if port.out.strip() == "taken":
            return f"port {target.port} is still taken"
    gpu = await host.run(gpu_step(name).command)
    if gpu.status != 0:
        return f"could not check who holds GPU memory: {gpu.last}"
    held = set(gpu.out.split()) & was
    return f"GPU memory is held by {', '.join(sorted(held))}" if held else None


async def run_hooks(hosts: Hosts, steps: Sequence[tuple[str, str, str]], note: Callable[[str], None]) -> dict[str, str]:
    """Run commands (`node`, command, on_failure) in order on each node, nodes in parallel. The first failure that
    aborts, by node."""

    async def on(name: str) -> tuple[str, str | None]:
        for node, command, on_failure in steps:
            if node != name:
                continue
            try:
                done = await hosts.up[name].run(command, timeout_s=600)
            except NodeUnreachable as e:
                return name, str(e)
            if done.status != 0:
                if on_failure == "abort":
                    return name, f"{command[:80]!r} ended in {done.status}: {done.last}"
                note(f"{name}: {command[:80]!r} ended in {done.status}: {done.last}; the recipe says to go on")
        return name, None

    names = [name for name in dict.fromkeys(step[0] for step in steps) if name in hosts.up]
    ends = await asyncio.gather(*(on(name) for name in names))
    return {name: problem for name, problem in ends if problem is not None}
