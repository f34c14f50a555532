"""`mesh launch serve`, `stop`, `status`, `close` and `keys`: engines on nodes, and what became of them."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, say
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import (
    add_choice_flags,
    add_common_flags,
    known_hosts,
    ledger_of,
    ledgers,
    loaded,
    login_of,
    recipe_at,
    wish_of,
)
from mesh.cli.launch_image import add_step_flags, check_step_flags
from mesh.cli.launch_plan import run_plan, run_stop_plan
from mesh.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from mesh.launch.config import Loaded
    from mesh.launch.plugins import Plugins
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.run_ledger import Run, RunLedger
    from mesh.launch.runs import Status


def add(actions: Any) -> None:
    serve = actions.add_parser("serve", help="launch a recipe, and wait until it answers")
    serve.add_argument("recipe", metavar="RECIPE", help="a recipe's name or file")
    serve.add_argument("--allow-errors", action="store_true", help="launch although the recipe breaks its contract")
    serve.add_argument("--ready-s", type=positive, default=1800, metavar="SECONDS", help="how long it may take (1800)")
    serve.add_argument("--follow", action="store_true", help="stay, and fail when the engine dies")
    serve.add_argument("--probe-s", type=positive, default=30, metavar="SECONDS", help="between looks of --follow (30)")
    serve.add_argument("--no-wait", action="store_true", help="end once started: status says when it answers")
    serve.add_argument("--dry-run", action="store_true", help="print every command, and run none: what plan does")
    add_choice_flags(serve)
    add_common_flags(serve)
    add_step_flags(serve)
    serve.set_defaults(run=run_serve)
    stop = actions.add_parser("stop", help="stop a recipe's run on every node, and see that nothing is left")
    stop.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    stop.add_argument("--drain-s", type=positive, default=20, metavar="SECONDS", help="from TERM to the sweep (20)")
    stop.add_argument("--verify-s", type=positive, default=60, metavar="SECONDS", help="until nothing is left (60)")
    stop.add_argument("--no-wait", action="store_true", help="end once told: the run stays open")
    stop.add_argument("--dry-run", action="store_true", help="print every command, and run none")
    add_common_flags(stop)
    stop.set_defaults(run=run_stop)
    status = actions.add_parser("status", help="compare each open run with its processes, port and models")
    status.add_argument("recipes", nargs="*", metavar="RECIPE", help="recipes (all that have a ledger)")
    add_common_flags(status)
    status.set_defaults(run=run_status)
    close = actions.add_parser("close", help="close an open run in the ledger, without a look at any node")
    close.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    close.add_argument("--run-id", metavar="ID", help="which run (the last that is open)")
    add_common_flags(close)
    close.set_defaults(run=run_close)
    keys = actions.add_parser("keys", help="show the host keys that nodes have now, and pin them")
    keys.add_argument("--cluster", metavar="NAME", help="of one cluster (all)")
    keys.add_argument("--pin", action="store_true", help="write keys of nodes that have none pinned yet")
    keys.add_argument("--replace", action="store_true", help="with --pin, also where another key is pinned")
    add_common_flags(keys)
    keys.set_defaults(run=run_keys)


def run_serve(args: argparse.Namespace) -> int:
    check_step_flags(args)
    if args.dry_run:
        return run_plan(args)
    if args.no_wait and args.follow:
        raise UsageError("--no-wait and --follow exclude each other")
    from mesh.launch.finding import has_error
    from mesh.launch.plugins import load_plugins
    from mesh.launch.validate import Rules, validate

    config = loaded(args)
    file = recipe_at(args.recipe, config)
    plugins = load_plugins()
    findings = validate(file, Rules(config.config.default_port, staging=plugins.staging))
    for one in findings:
        note(one.words())
    if has_error(findings) and not args.allow_errors:
        raise LaunchError(f"recipe {file.name} breaks its contract, so nothing is launched; --allow-errors does anyway")
    ledger = ledger_of(file.name, config)
    if (damaged := ledger.damaged()) is not None:
        note(damaged)
    with ledger.locked(at_ns=time.time_ns()) as stale:
        if stale is not None:
            note(f"took over a lock that was left by {stale}")
        with ExitStack() as stack:
            told = asyncio.run(_serve(args, config, file, ledger, plugins, stack))
    if args.json:
        emit(told)
    if args.follow:
        from mesh.launch.runs import follow

        run = next(one for one in ledger.runs() if one.id == told["run"])
        asyncio.run(follow(ledger, run, login_of(config), now_ns=time.time_ns, note=note, probe_s=args.probe_s))
    return ACCEPTED


async def _serve(
    args: argparse.Namespace, config: Loaded, file: RecipeFile, ledger: RunLedger, plugins: Plugins, stack: ExitStack
) -> dict[str, Any]:
    from mesh.launch.launching import Launch
    from mesh.launch.occupancy import Claims, candidates, clusters_of, pick, survey
    from mesh.launch.plan import Options
    from mesh.launch.record import keep, make_record
    from mesh.launch.seen_images import SEEN_FILE, SeenImages
    from mesh.launch.ssh import Hosts
    from mesh.steward import keys

    wish = wish_of(args)
    near = candidates(config.config, file.recipe, wish)
    blocked = {
        node.name: "; ".join(why)
        for cluster in clusters_of(config.config, wish)
        if (why := plugins.blocked(config.config, cluster))
        for node in cluster.nodes
    }
    key = keys.load_or_create(ledgers(config) / "key")
    running = ledger.open_run()
    if running is not None:
        raise LaunchError(f"recipe {file.name}: run {running.id} is open; stop it, or see `mesh launch status`")
    run = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    async with Hosts(login_of(config), near) as hosts:
        found = await survey(hosts, file.recipe.port or config.config.default_port, note=note, blocked=blocked)
        claims = stack.enter_context(Claims(ledgers(config) / "claims"))
        chosen = pick(config.config, file.recipe, wish, found, claims, hosts.down)
        note(f"chosen: {', '.join(node.name for node in chosen.nodes)} of {chosen.cluster.name}")
        launch = Launch(
            config.config, file, chosen, run, ledger, hosts.of(chosen.nodes), time.time_ns, note,
            options=Options(args.mirror, args.hf_cache, args.stage, args.clear), ready_s=float(args.ready_s),
            plugins=plugins,
            seen=SeenImages(ledgers(config) / SEEN_FILE),
        )  # fmt: skip
        plan = await launch.prepare()
        record = make_record(
            plan, config, launch.facts, model=launch.expected_model, launched_ns=time.time_ns(), key=key
        )
        path = keep(ledger.folder / run, record, plan, config, launch.facts)
        await launch.start(plan, record, wait=not args.no_wait)
        nodes = {node.name: f"{node.ssh_ip}:{launch.port}" for node in chosen.nodes}
        return {
            "run": run,
            "recipe": file.name,
            "model": launch.expected_model,
            "nodes": nodes,
            "processes": await launch.processes(),
            "launch_digest": record.digest.text,
            "record": str(path),
        }


def run_stop(args: argparse.Namespace) -> int:
    if args.dry_run:
        return run_stop_plan(args)
    from mesh.launch.run_choice import open_run_of
    from mesh.launch.runs import stop_run, tell
    from mesh.launch.stopping import Deadlines

    config = loaded(args)
    ledger = ledger_of(args.recipe, config)
    open_run_of(ledger.folder.parent, ledger.folder.name)  # before anything is written of a recipe that never ran
    try:
        recipe = recipe_at(args.recipe, config).recipe
    except (UsageError, OSError) as e:
        recipe = None
        note(f"no after_stop: {e}")
    with ledger.locked(at_ns=time.time_ns()) as stale:
        if stale is not None:
            note(f"took over a lock that was left by {stale}")
        run = open_run_of(ledger.folder.parent, ledger.folder.name)
        deadlines = Deadlines(drain_s=float(args.drain_s), verify_s=float(args.verify_s))
        if args.no_wait:
            ledger.append({"event": "stopping", "run": run.id, "at_ns": time.time_ns()})
            asyncio.run(tell(run, login_of(config), drain_s=float(args.drain_s)))
            note(f"run {run.id} is told to end, and stays open: a stop without --no-wait verifies it")
            return ACCEPTED
        asyncio.run(
            stop_run(ledger, run, login_of(config), now_ns=time.time_ns, note=note, recipe=recipe, deadlines=deadlines)
        )
    if args.json:
        emit({"run": run.id, "recipe": args.recipe, "verified": True})
    else:
        say(f"run {run.id} is stopped: no process, session or port is left")
    return ACCEPTED


def run_status(args: argparse.Namespace) -> int:
    from mesh.launch.run_choice import recipes_with_runs, run_of, runs_of
    from mesh.launch.runs import Status, status_of

    config = loaded(args)
    root = ledgers(config)
    names = [ledger_of(name, config).folder.name for name in args.recipes] or recipes_with_runs(root)
    told = []
    good = True
    for name in names:
        ledger = ledger_of(name, config)
        if (damaged := ledger.damaged()) is not None:
            note(damaged)
        runs = runs_of(root, name) if args.recipes else ledger.runs()
        if not runs:
            continue
        run, drift = next((one for one in reversed(runs) if one.open), runs[-1]), list[str]()
        try:
            status = asyncio.run(status_of(run_of(root, name, run.id), login_of(config), ledger))
            run, drift = status.run, _drift(name, run, config)
        except LaunchError as e:  # a damaged line of one recipe hides no other
            status = Status(run, "inconclusive", str(e), ())
        good = good and status.state in ("up", "starting", "stopped")
        told.append({**_told(name, run, status, len(runs)), "drift": drift})
        if not args.json:
            say(f"{name}: {status.state}: {status.why} (run {run.id}, {len(runs)} in all)")
            for line in drift:
                say(f"  drift: {line}")
            for one in status.seen:
                model = "" if one.model is None else f", model {one.model}"
                say(f"  {one.node}: process {one.process}, port {one.port}{model}; {one.detail}")
    if args.json:
        emit({"recipes": told})
    return ACCEPTED if good else REFUSED


def _drift(name: str, run: Run, config: Loaded) -> list[str]:
    """What of the recipe and the configuration is no longer as it was launched."""
    from mesh.launch.drift import drift_of
    from mesh.launch.running import kept_of

    now: RecipeFile | str
    try:
        now = recipe_at(name, config)
    except (UsageError, OSError) as e:
        now = str(e)
    return drift_of(kept_of(ledger_of(name, config).folder / run.id, name, run), now, config)


def _told(name: str, run: Run, status: Status, count: int) -> dict[str, Any]:
    return {
        "recipe": name, "run": run.id, "open": run.open, "state": status.state, "why": status.why, "launches": count,
        "nodes": [one.to_map() for one in status.seen],
    }  # fmt: skip


def run_close(args: argparse.Namespace) -> int:
    from mesh.launch.run_choice import runs_of
    from mesh.launch.runs import close_by_hand

    ledger = ledger_of(args.recipe, loaded(args))
    runs_of(ledger.folder.parent, ledger.folder.name)  # before anything is written of a recipe that never ran
    with ledger.locked(at_ns=time.time_ns()):
        run = close_by_hand(ledger, args.run_id, time.time_ns())
    if args.json:
        emit({"run": run.id, "recipe": args.recipe, "verified": False})
    else:
        say(f"run {run.id} is closed by hand; no node was looked at")
    return ACCEPTED


def run_keys(args: argparse.Namespace) -> int:
    from mesh.launch.selection import named
    from mesh.launch.ssh import host_key_line

    config = loaded(args)
    clusters = config.config.clusters if args.cluster is None else [named(config.config, args.cluster)]
    nodes = [node for cluster in clusters for node in cluster.nodes]

    async def collect() -> list[str | BaseException]:
        return await asyncio.gather(*(host_key_line(node) for node in nodes), return_exceptions=True)

    path = known_hosts(config)
    pinned = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    told, lines, good = [], list(pinned), True
    for node, line in zip(nodes, asyncio.run(collect()), strict=True):
        if isinstance(line, BaseException):
            if not isinstance(line, LaunchError):
                raise line
            state, shown = "unknown", str(line)
        else:
            address, shown = line.split(" ", 1)[0], line
            own = [one for one in lines if one.split(" ", 1)[0] == address]
            state = "pinned" if line in own else "changed" if own else "new"
            if args.pin and (state == "new" or (state == "changed" and args.replace)):
                lines = [one for one in lines if one not in own] + [line]
                state = "pinned now"
        good = good and state in ("pinned", "pinned now")
        told.append({"node": node.name, "state": state, "key": shown})
        if not args.json:
            say(f"{node.name}: {state}: {shown}")
    if lines != pinned:
        _write(path, "".join(f"{line}\n" for line in lines))
    if args.json:
        emit({"file": str(path), "nodes": told})
    return ACCEPTED if good else REFUSED


def _write(path: Path, text: str) -> None:
    from mesh.cli.newfile import rewrite, write_new

    if path.exists():
        rewrite(path, text.encode("utf-8"))
    else:
        write_new(path, [text.encode("utf-8")])
