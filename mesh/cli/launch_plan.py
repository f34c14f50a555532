"""Launches and stops on paper: `mesh launch plan`, and the dry runs of `serve` and `stop`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import ledger_of, loaded, recipe_at, wish_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.commands import Step
    from mesh.launch.finding import Finding


def maps(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [one.to_map() for one in findings]


def run_plan(args: argparse.Namespace) -> int:
    """No node is asked: the choice is the one that falls where all are free."""
    from mesh.launch.finding import has_error
    from mesh.launch.occupancy import candidates
    from mesh.launch.on_paper import launch_steps
    from mesh.launch.plan import Options, make_plan
    from mesh.launch.plugins import load_plugins
    from mesh.launch.selection import choose
    from mesh.launch.validate import Rules, validate

    config = loaded(args)
    file = recipe_at(args.recipe, config)
    plugins = load_plugins()
    findings = validate(file, Rules(config.config.default_port, staging=plugins.staging))
    wish = wish_of(args)
    chosen = choose(config.config, file.recipe, wish)
    options = Options(args.mirror, args.hf_cache, args.stage, args.clear)
    plan = make_plan(config.config, file, chosen, run="DRY-RUN", options=options, plugins=plugins)
    steps = launch_steps(config.config, plan, options, candidates(config.config, file.recipe, wish))
    if args.json:
        told = [{"phase": phase, **step.to_map()} for phase, step in steps]
        emit({**plan.to_map(), "steps": told, "ok": not has_error(findings), "findings": maps(findings)})
    else:
        nodes = ", ".join(node.name for node in chosen.nodes)
        say(f"# {file.name} on {chosen.cluster.name}: {nodes}; nothing is run")
        _say(steps)
        for one in findings:
            note(one.words())
    return REFUSED if has_error(findings) else ACCEPTED


def run_stop_plan(args: argparse.Namespace) -> int:
    """The commands by which the open run would be stopped."""
    from mesh.launch.on_paper import stop_steps
    from mesh.launch.run_choice import open_run_of
    from mesh.launch.runs import target_of
    from mesh.launch.stopping import Deadlines

    config = loaded(args)
    ledger = ledger_of(args.recipe, config)
    run = open_run_of(ledger.folder.parent, ledger.folder.name)
    try:
        recipe = recipe_at(args.recipe, config).recipe
    except (UsageError, OSError) as e:
        recipe = None
        note(f"no after_stop: {e}")
    steps = stop_steps(target_of(run), recipe, Deadlines(drain_s=float(args.drain_s), verify_s=float(args.verify_s)))
    if args.json:
        emit({"run": run.id, "steps": [{"phase": phase, **step.to_map()} for phase, step in steps]})
    else:
        say(f"# run {run.id}; nothing is run")
        _say(steps)
    return ACCEPTED


def _say(steps: Sequence[tuple[str, Step]]) -> None:
    for phase, step in steps:
        warns = " (a failure only warns)" if step.on_failure == "warn" else ""
        say(f"# {phase}: {step.node}: {step.what}{warns}")
        say(step.command)
