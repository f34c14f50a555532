"""What became of a run: up, stale or inconclusive, and its verified stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mesh.errors import LaunchError, NodeFailed, NodeUnreachable, UsageError
from mesh.launch.commands import hook_steps
from mesh.launch.config import LaunchConfig, Node
from mesh.launch.looking import Seen, look
from mesh.launch.recipe import Recipe
from mesh.launch.run_ledger import Run, RunLedger
from mesh.launch.ssh import Hosts, Login
from mesh.launch.stopping import Deadlines, Target, end_command, run_hooks, stop_everywhere
from mesh.launch.toml_file import validated

State = Literal["up", "starting", "stale", "inconclusive", "differs", "stopped"]


@dataclass(frozen=True, slots=True)
class Status:
    """`state` is what ledger and nodes together say: `stale`, open in the ledger while every node is free of it;
    `inconclusive`, some node could not be asked; `differs`, port or model are not what the ledger says."""

    run: Run
    state: State
    why: str
    seen: tuple[Seen, ...]


def nodes_of(run: Run) -> tuple[Node, ...]:
    """The nodes as they were when the run was opened. Raises UsageError for a ledger that names none."""
    nodes = run.opened.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise UsageError(f"run {run.id}: the ledger names no nodes")
    return tuple(validated(Node, node, f"run {run.id}") for node in nodes)


def target_of(run: Run) -> Target:
    return Target(run.id, nodes_of(run), int(run.opened["port"]), str(run.opened["deploy"]))


async def status_of(run: Run, login: Login, ledger: RunLedger | None = None) -> Status:
    """Compare the ledger with processes, port and model list. Nothing is changed. With `ledger`, what became of the run
    while nodes were asked counts, and one that a launcher is just starting is not stale."""
    target = target_of(run)
    expected = str(run.opened["model"])
    async with Hosts(login, target.nodes) as hosts:
        looked = await asyncio.gather(
            *(
                look(host, run.id, target.port, head=name == target.nodes[0].name, deploy=target.deploy)
                for name, host in hosts.up.items()
            ),
            return_exceptions=True,
        )
        seen = [one for one in looked if isinstance(one, Seen)]
        lost = [str(one) for one in looked if isinstance(one, NodeUnreachable)] + [str(e) for e in hosts.down.values()]
        for one in looked:
            if isinstance(one, BaseException) and not isinstance(one, NodeUnreachable):
                raise one
    if ledger is not None:
        run = next((one for one in ledger.runs() if one.id == run.id), run)
    state, why = _state(run, seen, lost, expected, target)
    if state == "stale" and run.phase == "starting" and ledger is not None and (held := ledger.at_work()) is not None:
        state, why = "starting", f"no process of it is there yet, and {held} is at work on it"
    return Status(run, state, why, tuple(seen))


def _state(run: Run, seen: list[Seen], lost: list[str], expected: str, target: Target) -> tuple[State, str]:
    head = next((one for one in seen if one.node == target.nodes[0].name), None)
    unknown = [one.detail for one in seen if one.process == "unknown" or one.port == "unknown"]
    if not run.open:
        left = [one.node for one in seen if one.process == "alive"]
        if left:
            return "differs", f"closed, and processes of it are on {', '.join(left)}"
        if head is not None and head.port == "alive":
            return "differs", f"closed, and port {target.port} is taken by something else"
        how = str((run.closed or {}).get("how", ""))
        return "stopped", "; ".join([how, *(f"could not be looked at now: {why}" for why in [*lost, *unknown])])
    if lost or unknown:
        return "inconclusive", "; ".join([*lost, *unknown])
    dead = [one.node for one in seen if one.process == "dead"]
    if len(dead) == len(seen):
        if head is not None and head.port == "alive":
            return "differs", f"no process of it is left, and port {target.port} is {head.model or 'something'}'s"
        return "stale", "every node was asked, and none has a process of it"
    if dead:
        return "differs", f"no process of it is left on {', '.join(dead)}"
    if head is not None and head.model is not None and expected not in head.model.split(", "):
        return "differs", f"port {target.port} serves {head.model}, not {expected}"
    if head is not None and head.model is None:
        return "starting", "its processes live, and no model answers yet" if run.phase == "starting" else (
            "its processes live, and no model answers: a long prefill, or a start"
        )
    if run.phase == "starting":  # a list of models is no sign of it: servers give one while they warm up
        return "starting", f"lists {expected}, and was not seen to complete anything"
    return "up", f"serves {expected}"


async def stop_run(
    ledger: RunLedger, run: Run, login: Login, *, now_ns: Callable[[], int], note: Callable[[str], None],
    config: LaunchConfig | None = None, recipe: Recipe | None = None, deadlines: Deadlines = Deadlines(),  # noqa: B008
) -> None:  # fmt: skip
    """Stop it on every node, verify, run after_stop, close it. Raises NodeFailed naming each node that was not seen to
    be free of it: the run then stays open."""
    target = target_of(run)
    ledger.append({"event": "stopping", "run": run.id, "at_ns": now_ns()})
    async with Hosts(login, target.nodes) as hosts:
        problems = await stop_everywhere(hosts, target, deadlines, note)
        if problems:
            shown = "; ".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
            raise NodeFailed(f"run {run.id} stays open: {shown}", nodes=problems)
        hooks = (
            []
            if recipe is None
            else [step for node in target.nodes for step in hook_steps(node, "after_stop", recipe.after_stop)]
        )
        failed = await run_hooks(hosts, [(step.node, step.command, step.on_failure) for step in hooks], note)
    closed_ns = now_ns()
    event = {"event": "closed", "run": run.id, "at_ns": closed_ns, "how": "stopped", "verified": True}
    uptime_s = (closed_ns - int(run.opened["at_ns"])) // 10**9
    ledger.append(event if uptime_s < 0 else event | {"uptime_s": uptime_s})  # a clock that was set back knows none
    if failed:
        raise NodeFailed(
            "stopped and verified; after_stop: " + "; ".join(f"{n}: {p}" for n, p in failed.items()), nodes=failed
        )


async def tell(run: Run, login: Login, *, drain_s: float) -> None:
    """Tell the engines to end, and look at nothing: the run stays open. Raises NodeFailed naming each node that could
    not be told."""
    target = target_of(run)
    async with Hosts(login, target.nodes) as hosts:
        ends = await asyncio.gather(
            *(
                host.run(end_command(run.id, target.deploy, drain_s), timeout_s=drain_s + 60)
                for host in hosts.up.values()
            ),
            return_exceptions=True,
        )
        told = dict(zip(hosts.up, ends, strict=True))
        problems = {name: str(error) for name, error in hosts.down.items()}
        problems |= {name: str(end) for name, end in told.items() if isinstance(end, BaseException)}
    if problems:
        shown = "; ".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
        raise NodeFailed(f"run {run.id} stays open: {shown}", nodes=problems)


async def follow(
    ledger: RunLedger, run: Run, login: Login, *, now_ns: Callable[[], int], note: Callable[[str], None],
    probe_s: float = 30.0, misses: int = 2,
) -> None:  # fmt: skip
    """Watch a run until its engine is gone from a node at `misses` looks in a row; then stop what is left of it and
    close it. A server that is merely slow to answer is alive: a long prefill is no death. Returns where somebody else
    closed it; raises NodeFailed where it died."""
    missed = 0
    while missed < misses:
        await asyncio.sleep(probe_s)
        current = next((one for one in ledger.runs() if one.id == run.id), run)
        if not current.open or current.phase == "stopping":
            return
        status = await status_of(current, login)
        gone = [one.node for one in status.seen if one.process == "dead"]
        missed = missed + 1 if gone else 0
        if status.state not in ("up", "starting"):
            note(f"{status.state}: {status.why}")
    target = target_of(run)
    async with Hosts(login, target.nodes) as hosts:
        problems = await stop_everywhere(hosts, target, Deadlines(drain_s=5.0), note)
    died = f"the engine died on {', '.join(gone)}"
    if not problems:
        ledger.append(
            {"event": "closed", "run": run.id, "at_ns": now_ns(), "how": "died", "why": died, "verified": True}
        )
    raise NodeFailed(died + ("; the run stays open" if problems else ""), nodes=problems or dict.fromkeys(gone, died))


def close_by_hand(ledger: RunLedger, run_id: str | None, now_ns: int) -> Run:
    """Close an open run without a look at any node. Raises LaunchError where none is open."""
    run = ledger.open_run() if run_id is None else next((r for r in ledger.runs() if r.id == run_id and r.open), None)
    if run is None:
        raise LaunchError(f"{ledger.folder.name}: no open run" + (f" {run_id}" if run_id else ""))
    event: dict[str, Any] = {"event": "closed", "run": run.id, "at_ns": now_ns, "how": "by-hand", "verified": False}
    ledger.append(event)
    return run
