"""`mesh launch health`, `doctor`, `exec`, `logs` and `tmux`: nodes asked, and nothing on them changed but by `exec`."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, flush, note, printable_text, say
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED, NOT_RUN, REFUSED
from mesh.cli.launch_flags import add_common_flags, known_hosts, ledgers, loaded, login_of, recipe_at
from mesh.errors import NodeFailed, UsageError

if TYPE_CHECKING:
    from mesh.launch.commands import Step
    from mesh.launch.config import Loaded
    from mesh.launch.everywhere import Outcome
    from mesh.launch.fleet import Fleet
    from mesh.launch.run_ledger import Run

_LOG_S = 60.0


def add(actions: Any) -> None:
    health = actions.add_parser("health", help="how clusters, nodes and open runs are: reachable, alive, ready")
    health.add_argument("--cluster", metavar="NAME", help="one cluster, or the beginning of its name (all)")
    health.add_argument("--complete", action="store_true", help="ready only where a real completion is answered too")
    health.add_argument("--watch", action="store_true", help="look again and again, and keep it for pages to show")
    health.add_argument("--every", type=positive, default=10, metavar="SECONDS", help="between looks of --watch (10)")
    _dry_run(health)
    add_common_flags(health)
    health.set_defaults(run=run_health)
    doctor = actions.add_parser("doctor", help="what stands in the way of a launch: a line for each check")
    doctor.add_argument("--cluster", metavar="NAME", help="one cluster, or the beginning of its name (all)")
    doctor.add_argument("--recipe", metavar="RECIPE", help="hold the nodes to what this recipe needs")
    _dry_run(doctor)
    add_common_flags(doctor)
    doctor.set_defaults(run=run_doctor)
    execute = actions.add_parser(
        "exec",
        help="run a command on all or some nodes at once",
        description="One word is an alias of [exec_aliases] or a line for the nodes' shell; several are a program and "
        "its arguments. Exit 10 where it failed on a node, 3 where a node could not be asked.",
    )
    execute.add_argument("--cluster", metavar="NAME", help="one cluster, or the beginning of its name (all)")
    execute.add_argument("--node", action="append", metavar="NAME", help="only this node; may be given again")
    execute.add_argument("--timeout-s", type=positive, default=600, metavar="SECONDS", help="for each node (600)")
    execute.add_argument("words", nargs="+", metavar="COMMAND", help="what to run, after -- where it has flags")
    _dry_run(execute)
    add_common_flags(execute)
    execute.set_defaults(run=run_exec)
    logs = actions.add_parser("logs", help="what the engines of a run said, by node")
    _run_flags(logs)
    logs.add_argument("--tail", type=positive, default=100, metavar="N", help="the last N lines of each node (100)")
    logs.add_argument("--follow", action="store_true", help="go on until the engines have ended")
    _dry_run(logs)
    add_common_flags(logs)
    logs.set_defaults(run=run_logs)
    tmux = actions.add_parser("tmux", help="what is on the engines' terminals, and how to attach to one")
    _run_flags(tmux)
    _dry_run(tmux)
    add_common_flags(tmux)
    tmux.set_defaults(run=run_tmux)


def _dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the commands of each node, and run none")


def _run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    parser.add_argument("--run-id", metavar="ID", help="which, or the beginning of its id (the open one or the last)")
    parser.add_argument("--node", action="append", metavar="NAME", help="only this node; may be given again")


def _print_steps(args: argparse.Namespace, steps: Sequence[Step]) -> int:
    if args.json:
        emit({"steps": [{"node": one.node, "what": one.what, "command": one.command} for one in steps]})
        return ACCEPTED
    say(f"# {counted(len(steps), 'command')}; nothing is run")
    for step in steps:
        say(f"# {step.node}: {step.what}")
        say(step.command)
    return ACCEPTED


def run_health(args: argparse.Namespace) -> int:
    config = loaded(args)
    if args.dry_run:
        return _print_steps(args, _health_steps(args, config))
    if args.watch and args.json:
        raise UsageError("--watch goes on, and --json prints one object: one of them")
    if not config.config.clusters and args.cluster is None:
        raise UsageError("no cluster in the configuration: add [[clusters]] or cluster_sources")
    if args.watch:
        return asyncio.run(_watch(args, config))
    fleet = asyncio.run(_look(args, config))
    if args.json:
        emit({"ok": fleet.good, **fleet.to_map()})
    else:
        _say_fleet(fleet)
    return ACCEPTED if fleet.good else REFUSED


async def _look(args: argparse.Namespace, config: Loaded) -> Fleet:
    from mesh.launch.fleet import survey
    from mesh.launch.plugins import load_plugins

    return await survey(
        config.config, ledgers(config), login_of(config), now_ns=time.time_ns, cluster=args.cluster,
        complete=args.complete, plugins=load_plugins(),
    )  # fmt: skip


async def _watch(args: argparse.Namespace, config: Loaded) -> int:
    from mesh.launch.live import LIVE_FILE, write_live

    note(f"looking every {args.every} s into {ledgers(config) / LIVE_FILE}")
    while True:
        fleet = await _look(args, config)
        write_live(ledgers(config), fleet, args.every)
        up = sum(cluster.up for cluster in fleet.clusters)
        runs = [run for cluster in fleet.clusters for run in cluster.runs]
        say(f"{counted(len(fleet.clusters), 'cluster')}, {up} up; {counted(len(runs), 'open run')}, "
            f"{sum(run.good for run in runs)} ready")  # fmt: skip
        flush()
        await asyncio.sleep(args.every)


def _health_steps(args: argparse.Namespace, config: Loaded) -> list[Step]:
    """What a look runs on the nodes; what it asks the engines goes through the same connections."""
    from mesh.launch.looking import marked_step, port_step
    from mesh.launch.run_choice import check_opened, every_ledger
    from mesh.launch.runs import nodes_of
    from mesh.launch.selection import named

    wanted = None if args.cluster is None else named(config.config, args.cluster).name
    steps = []
    for recipe, ledger in every_ledger(ledgers(config)):
        run = ledger.open_run()
        if run is None or wanted not in (None, check_opened(recipe, run).opened["cluster"]):
            continue
        for node in nodes_of(run):
            steps += [marked_step(node.name, run.id), port_step(node.name, int(run.opened["port"]))]
    return steps


def _say_fleet(fleet: Fleet) -> None:
    for cluster in fleet.clusters:
        say(f"{cluster.name}: {'up' if cluster.up else 'down'}")
        for cause in cluster.blocked:
            say(f"  {cause}")
        for node in cluster.nodes:
            say(f"  {node.node} {node.address}: {node.state}" + (f": {node.why}" if node.why else ""))
        for run in cluster.runs:
            say(f"  {run.recipe} {run.run.id}: {run.state}, {run.readiness}: {run.why}")
            for one in run.to_map()["nodes"]:
                say(f"    rank {one['rank']} on {one['node']}: {one['liveness']}")
    for recipe, fault in fleet.damaged.items():
        say(f"{recipe}: {fault}")


def run_doctor(args: argparse.Namespace) -> int:
    from mesh.launch.doctoring import examine, local_lines
    from mesh.launch.everywhere import chosen_nodes
    from mesh.launch.node_checks import checks_of
    from mesh.launch.selection import named

    config = loaded(args)
    recipe = None if args.recipe is None else recipe_at(args.recipe, config).recipe
    nodes = chosen_nodes(config.config, args.cluster)
    clusters = config.config.clusters if args.cluster is None else [named(config.config, args.cluster)]
    nccl = {node.name: config.config.nccl.get(one.name) for one in reversed(clusters) for node in one.nodes}
    heads = {one.by_rank[0].name for one in clusters}
    checks = {
        node.name: checks_of(config.config, node, nccl[node.name], recipe, head=node.name in heads) for node in nodes
    }
    if args.dry_run:
        return _print_steps(args, [check.step for node in nodes for check in checks[node.name]])
    login = login_of(config)
    lines = local_lines(login, known_hosts(config), ledgers(config))
    here = not any(line.level == "fail" and line.check != "known_hosts" for line in lines)
    if here:
        lines += asyncio.run(examine(login, nodes, checks, time.time))
    failed = sum(line.level == "fail" for line in lines)
    warned = sum(line.level == "warn" for line in lines)
    if args.json:
        emit({"ok": not failed, "lines": [line.to_map() for line in lines]})
        return REFUSED if failed else ACCEPTED
    for line in lines:
        say(f"{line.level:4} {line.node}: {line.check}: {line.found}")
        if line.todo is not None:
            say(f"       {line.todo}")
    if not here:
        note("no node was asked: what fails here comes first")
    note(f"{counted(failed, 'failure')}, {counted(warned, 'warning')}")
    return REFUSED if failed else ACCEPTED


def run_exec(args: argparse.Namespace) -> int:
    from mesh.launch.commands import Step
    from mesh.launch.everywhere import chosen_nodes, command_of, run_everywhere

    config = loaded(args)
    nodes = chosen_nodes(config.config, args.cluster, args.node or ())
    command = command_of(config.config, args.words)
    steps = [Step(node.name, "exec", command) for node in nodes]
    if args.dry_run:
        return _print_steps(args, steps)
    ends = asyncio.run(run_everywhere(login_of(config), nodes, steps, timeout_s=float(args.timeout_s)))
    return _told(args, ends, {"command": command})


def _told(args: argparse.Namespace, ends: Sequence[Outcome], more: dict[str, Any]) -> int:
    """Say what each node said, and one exit code for all of them."""
    if args.json:
        emit({"ok": all(one.good for one in ends), **more, "nodes": [one.to_map() for one in ends]})
    else:
        for one in ends:
            for text in (one.out, one.err):
                for line in printable_text(text).rstrip("\n").split("\n") if text.strip() else ():
                    say(f"{one.node}: {line}")
        for one in ends:
            if not one.good:
                note(f"{one.node}: {one.words}")
    if any(one.lost is not None for one in ends):
        return NOT_RUN
    return ACCEPTED if all(one.good for one in ends) else REFUSED


def run_logs(args: argparse.Namespace) -> int:
    from mesh.launch.everywhere import run_everywhere
    from mesh.launch.run_choice import run_of
    from mesh.launch.runs import nodes_of
    from mesh.launch.tailing import log_steps

    if args.follow and args.json:
        raise UsageError("--follow goes on, and --json prints one object: one of them")
    config = loaded(args)
    run = run_of(ledgers(config), args.recipe, args.run_id)
    steps = log_steps(run, tail=args.tail, follow=args.follow, only=args.node or ())
    if args.dry_run:
        return _print_steps(args, steps)
    if args.follow:
        return asyncio.run(_follow(args.recipe, run, steps, config))
    asked = {step.node for step in steps}
    nodes = [node for node in nodes_of(run) if node.name in asked]
    ends = asyncio.run(run_everywhere(login_of(config), nodes, steps, timeout_s=_LOG_S))
    return _told(args, ends, {"recipe": args.recipe, "run": run.id})


async def _follow(recipe: str, run: Run, steps: Sequence[Step], config: Loaded) -> int:
    """Until every node's log has ended: quietly where the run was stopped, with an error where its engine died."""
    from contextlib import aclosing

    from mesh.launch.run_choice import run_of
    from mesh.launch.runs import status_of
    from mesh.launch.tailing import read_logs

    lost: dict[str, str] = {}
    async with aclosing(read_logs(run, steps, login_of(config))) as lines:
        async for said in lines:
            if not said.ended:
                say(f"{said.node}: {said.text}")
                flush()  # whoever reads it follows too
            elif said.text is not None:
                lost[said.node] = said.text
            else:
                note(f"{said.node}: the log has ended")
    if lost:
        shown = "; ".join(f"{node}: {why}" for node, why in sorted(lost.items()))
        raise NodeFailed(f"logs of run {run.id}: {shown}", nodes=lost)
    now = run_of(ledgers(config), recipe, run.id)
    if not now.open or now.phase == "stopping":
        return ACCEPTED
    status = await status_of(now, login_of(config))
    dead = {one.node: "no process of it is left" for one in status.seen if one.process == "dead"}
    if dead:
        raise NodeFailed(f"run {run.id} is open, and its engine is gone from {', '.join(sorted(dead))}", nodes=dead)
    return ACCEPTED


def run_tmux(args: argparse.Namespace) -> int:
    from mesh.launch.everywhere import run_everywhere
    from mesh.launch.run_choice import run_of
    from mesh.launch.runs import nodes_of
    from mesh.launch.tailing import attach_command, screen_step

    config = loaded(args)
    run = run_of(ledgers(config), args.recipe, args.run_id)
    if run.opened["deploy"] != "tmux":
        raise UsageError(f"run {run.id}: deployed by {run.opened['deploy']}, and not in tmux")
    nodes = [node for node in nodes_of(run) if not args.node or node.name in args.node]
    if not nodes:
        known = ", ".join(node.name for node in nodes_of(run))
        raise UsageError(f"run {run.id}: no rank of it on {', '.join(args.node)}; its nodes are {known}")
    steps = [screen_step(node.name, run.id) for node in nodes]
    if args.dry_run:
        return _print_steps(args, steps)
    login = login_of(config)
    ends = asyncio.run(run_everywhere(login, nodes, steps, timeout_s=_LOG_S))
    attach = {node.name: attach_command(node, login, run.id, known_hosts(config)) for node in nodes}
    code = _told(args, ends, {"recipe": args.recipe, "run": run.id, "attach": attach})
    if not args.json:
        for name, command in attach.items():
            say(f"{name}: attach: {command}")
    return code
