"""`mesh launch runs`: the run ledgers, and what their runs are now."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import add_common_flags, ledger_of, ledgers, loaded, login_of
from mesh.errors import LaunchError

if TYPE_CHECKING:
    from mesh.launch.config import Loaded
    from mesh.launch.run_ledger import Run

_NEWEST = 10


def add(actions: Any) -> None:
    runs = actions.add_parser(
        "runs",
        help="list the runs of each recipe: up, starting, stale, inconclusive, differs or closed",
        description="Open runs are looked for on their nodes; --offline tells what the ledger says alone. Exit 10 "
        "where an open run is not what the ledger says.",
    )
    runs.add_argument("recipes", nargs="*", metavar="RECIPE", help="recipes (all that have a ledger)")
    runs.add_argument("--offline", action="store_true", help="ask no node: an open run is told as open")
    runs.add_argument("--all", action="store_true", help=f"each closed run, and not the newest {_NEWEST} of a recipe")
    add_common_flags(runs)
    runs.set_defaults(run=run_runs)


def run_runs(args: argparse.Namespace) -> int:
    from mesh.launch.run_choice import recipes_with_runs, run_of
    from mesh.launch.run_ledger import RunLedger

    config = loaded(args)
    root = ledgers(config)
    told, good = [], True
    asked = [ledger_of(name, config).folder.name for name in args.recipes]
    for name in asked:
        run_of(root, name)  # one that was never launched is a mistake, and not an empty list
    for name in asked or recipes_with_runs(root):
        ledger = RunLedger(root / name)
        if (damaged := ledger.damaged()) is not None:
            note(damaged)
        runs = ledger.runs()
        shown = runs if args.all else [run for run in runs if run.open or run in runs[-_NEWEST:]]
        listed = [_told(name, run, args, config) for run in shown]
        one: dict[str, Any] = {"recipe": name, "launches": len(runs), "runs": listed}
        good = good and all(each["state"] in ("up", "starting", "open", "closed") for each in listed)
        told.append(one)
        if not args.json:
            _say(one)
    if args.json:
        emit({"ok": good, "recipes": told})
    elif not told:
        say(f"no run was ever launched: no ledger in {root}")
    return ACCEPTED if good else REFUSED


def _told(name: str, run: Run, args: argparse.Namespace, config: Loaded) -> dict[str, Any]:
    opened, closed = run.opened, run.closed
    nodes = opened.get("nodes")
    told: dict[str, Any] = {
        "run": run.id, "opened_ns": opened.get("at_ns"), "cluster": opened.get("cluster"),
        "nodes": [node.get("name") for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else None,
        "model": opened.get("model"), "launch_digest": opened.get("record"),
    }  # fmt: skip
    if closed is not None:
        told |= {"state": "closed", "closed_ns": closed.get("at_ns")}
        told |= {key: closed.get(key) for key in ("how", "why", "verified")}
    elif args.offline:
        told |= {"state": "open", "phase": run.phase}
    else:
        told |= {**_look(name, run, config), "phase": run.phase}
    until = time.time_ns() if closed is None else closed.get("at_ns")
    if _is_time(opened.get("at_ns")) and _is_time(until) and until >= opened["at_ns"]:
        told["uptime_s"] = (until - opened["at_ns"]) // 10**9
    return {key: value for key, value in told.items() if value is not None}


def _look(name: str, run: Run, config: Loaded) -> dict[str, Any]:
    from mesh.launch.run_choice import check_opened
    from mesh.launch.runs import status_of

    try:
        status = asyncio.run(status_of(check_opened(name, run), login_of(config), ledger_of(name, config)))
    except LaunchError as e:
        return {"state": "inconclusive", "why": str(e)}
    return {"state": status.state, "why": status.why}


def _say(one: dict[str, Any]) -> None:
    from mesh.cli.words import utc

    say(f"{one['recipe']}: {one['launches']} launches" if one["launches"] != 1 else f"{one['recipe']}: 1 launch")
    for run in one["runs"]:
        began = utc(run["opened_ns"]) if _is_time(run.get("opened_ns")) else "at an unknown time"
        state = run["state"]
        if state == "closed":
            verified = run.get("verified")
            seen = ", verified" if verified is True else ", nothing verified" if verified is False else ""
            state += f" ({run.get('how', 'how is not known')}{seen})"
        words = [run["run"], state, began]
        if "nodes" in run:
            words.append(f"{run.get('cluster', '?')}: {', '.join(map(str, run['nodes']))}")
        if "uptime_s" in run:
            words.append(_long(run["uptime_s"]))
        say("  " + "  ".join(words) + (f"  {run['why']}" if run.get("why") else ""))


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _long(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 48:
        return counted(hours // 24, "day")
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"
