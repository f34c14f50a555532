"""The logs of a run, from every node that has a rank of it."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.errors import NodeUnreachable, UsageError
from mesh.launch.commands import LABEL, SESSION, Step, at_home, log_path, socket_name
from mesh.launch.config import Node
from mesh.launch.run_ledger import Run
from mesh.launch.runs import nodes_of
from mesh.launch.ssh import Hosts, Login


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a node's log. `ended` where there will be no more of it; `text` is then None, or why."""

    node: str
    text: str | None
    ended: bool = False


def log_step(node: str, run: str, rank: int, deploy: str, *, tail: int, follow: bool) -> Step:
    """Prints the last `tail` lines, and with `follow` what comes until the engine has ended."""
    if deploy == "docker":
        ids = f"docker ps -aq --filter label={LABEL}={shlex.quote(run)} --filter label=mesh.rank={rank}"
        more = " -f" if follow else ""
        none = shlex.quote(f"no container of run {run}, rank {rank}: one that was stopped is removed, its log with it")
        command = f'c=$({ids} | head -n 1); [ -n "$c" ] || {{ echo {none} >&2; exit 1; }}; '
        return Step(node, "log", f'{command}exec docker logs --tail {tail}{more} "$c"')
    log = at_home(log_path(run, rank))
    if not follow:
        return Step(node, "log", f"exec tail -n {tail} {log}")
    panes = f"tmux -L {shlex.quote(socket_name(run))} list-panes -t {SESSION} -F '#{{pane_pid}} #{{pane_dead}}'"
    # The shell watches the engine, and the tail the shell, which is no zombie when it has ended: so the tail misses
    # nothing of the last words. tmux does not always wait for an engine that was killed, and a tail that is told to
    # follow a zombie never ends.
    return Step(
        node,
        "log",
        f"p=$({panes} 2>/dev/null | awk '$2 != 1 {{print $1; exit}}'); "
        f'[ -n "$p" ] || exec tail -n {tail} {log}; '
        'tail -n 0 --pid="$$" /dev/null >/dev/null 2>&1 && w="--pid=$$" || w=; '
        """lives() { s=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null); case "$s" in ''|Z*) return 1;; esac; }; """
        f"tail -n {tail} $w -f {log} & t=$!; "
        'while lives "$p" && lives "$t"; do sleep 1; done; '
        '[ -n "$w" ] || { sleep 1; kill "$t"; }',
    )


def log_steps(run: Run, *, tail: int, follow: bool, only: Sequence[str] = ()) -> list[Step]:
    """One for each rank, of the nodes in `only` where it names any. Raises UsageError for a node that has none."""
    nodes = nodes_of(run)
    names = [node.name for node in nodes]
    for name in only:
        if name not in names:
            raise UsageError(f"node {name[:80]!r}: no rank of run {run.id}; its nodes are {', '.join(names)}")
    return [
        log_step(name, run.id, rank, str(run.opened["deploy"]), tail=tail, follow=follow)
        for rank, name in enumerate(names)
        if not only or name in only
    ]


async def read_logs(run: Run, steps: Sequence[Step], login: Login) -> AsyncGenerator[Said, None]:
    """The lines of all nodes as they come. A node that cannot be asked, or is lost, ends with the reason."""
    nodes = [node for node in nodes_of(run) if node.name in {step.node for step in steps}]
    lines: asyncio.Queue[Said] = asyncio.Queue(maxsize=1000)
    async with Hosts(login, nodes) as hosts:

        async def one(step: Step) -> None:
            if step.node in hosts.down:
                await lines.put(Said(step.node, str(hosts.down[step.node]), ended=True))
                return
            try:
                async for line in hosts.up[step.node].lines(step.command):
                    await lines.put(Said(step.node, line))
            except NodeUnreachable as e:
                await lines.put(Said(step.node, str(e), ended=True))
            else:
                await lines.put(Said(step.node, None, ended=True))

        tasks = [asyncio.create_task(one(step)) for step in steps]
        try:
            left = len(tasks)
            while left:
                said = await lines.get()
                left -= said.ended
                yield said
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def screen_step(node: str, run: str) -> Step:
    """Prints the state of the engine's pane, and what is on its screen; fails where there is no session."""
    tmux = f"tmux -L {shlex.quote(socket_name(run))}"
    form = "'pid #{pane_pid}, dead #{pane_dead}, status #{pane_dead_status}'"
    return Step(
        node, "screen", f"{tmux} list-panes -t {SESSION} -F {form} && {tmux} capture-pane -p -t {SESSION} | sed '/^$/d'"
    )


def attach_command(node: Node, login: Login, run: str, known_hosts: Path) -> str:
    """For a person's own terminal: read-only, so that a key pressed there ends nothing."""
    words = ["ssh", "-t", "-p", str(node.ssh_port), "-i", str(login.key), "-o", f"UserKnownHostsFile={known_hosts}",
             "-o", "StrictHostKeyChecking=yes", f"{login.user}@{node.ssh_ip}",
             f"tmux -L {shlex.quote(socket_name(run))} attach -r -t {SESSION}"]  # fmt: skip
    return shlex.join(words)
