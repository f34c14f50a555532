"""`mesh launch`: recipes checked, planned and pinned offline, and the configuration that is in force."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli import (
    launch_bench,
    launch_image,
    launch_import,
    launch_ledgers,
    launch_nodes,
    launch_plugins,
    launch_report,
    launch_runs,
    launch_web,
)
from mesh.cli.console import counted, emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import add_choice_flags, add_common_flags, loaded, recipe_at, sources, wish_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.finding import Finding


def add(commands: Any) -> None:
    parser = commands.add_parser("launch", help="launch engines on other hosts from recipes")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _validate(actions)
    _plan(actions)
    _pin(actions)
    _config(actions)
    launch_image.add(actions)
    launch_import.add(actions)
    launch_plugins.add(actions)
    launch_runs.add(actions)
    launch_ledgers.add(actions)
    launch_nodes.add(actions)
    launch_bench.add(actions)
    launch_report.add(actions)
    launch_web.add(actions)


def _validate(actions: Any) -> None:
    parser = actions.add_parser("validate", help="hold recipes to their contract, offline")
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="names or files; without any, all that there are")
    parser.add_argument(
        "--models-float", action="store_true", help="refuse pinned models, as launchers do that follow the newest"
    )
    add_common_flags(parser)
    parser.set_defaults(run=run_validate)


def _plan(actions: Any) -> None:
    parser = actions.add_parser("plan", help="print every command that a launch would run on each node, and run none")
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name or file")
    add_choice_flags(parser)
    add_common_flags(parser)
    parser.set_defaults(run=run_plan)


def _pin(actions: Any) -> None:
    parser = actions.add_parser("pin", help="resolve a recipe's model and image, and write the pins into it")
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name or file")
    parser.add_argument("--model-dir", type=Path, metavar="PATH", help="the model's own folder or file: digest that")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="a model cache of this machine to look in first")
    parser.add_argument("--hub", metavar="URL", help="the hub that is asked for the model (huggingface.co)")
    parser.add_argument("--no-image", action="store_true", help="leave the image as it is")
    parser.add_argument("--no-model", action="store_true", help="leave the model as it is")
    parser.add_argument("--dry-run", action="store_true", help="print the pins and write nothing")
    add_common_flags(parser)
    parser.set_defaults(run=run_pin)


def _config(actions: Any) -> None:
    parser = actions.add_parser("config", help="show the configuration in force, and which file says what")
    add_common_flags(parser)
    parser.set_defaults(run=run_config)


def run_validate(args: argparse.Namespace) -> int:
    from mesh.launch.finding import has_error
    from mesh.launch.plugins import load_plugins
    from mesh.launch.recipe import RECIPE_FILE
    from mesh.launch.validate import Rules, validate

    config = loaded(args)
    names = args.recipes or [str(path) for root in sources(config) for path in sorted(root.glob(f"*/{RECIPE_FILE}"))]
    if not names:
        raise UsageError(f"no recipes in {', '.join(map(str, sources(config)))}")
    rules = Rules(config.config.default_port, args.models_float, load_plugins().staging)
    told: list[dict[str, Any]] = []
    failed = False
    for name in names:
        file = recipe_at(name, config)
        findings = validate(file, rules)
        failed = failed or has_error(findings)
        told.append({"recipe": file.name, "archived": file.recipe.archived, "findings": _maps(findings)})
        if not args.json:
            _print(f"{file.name}{' (archived)' if file.recipe.archived else ''}", findings)
    if args.json:
        emit({"ok": not failed, "recipes": told})
    return REFUSED if failed else ACCEPTED


def _maps(findings: list[Finding]) -> list[dict[str, str]]:
    return [one.to_map() for one in findings]


def _print(name: str, findings: list[Finding]) -> None:
    errors = sum(one.level == "error" for one in findings)
    warnings = sum(one.level == "warning" for one in findings)
    say(f"{name}: " + (f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if findings else "in order"))
    for one in findings:
        say("  " + one.words())


def run_plan(args: argparse.Namespace) -> int:
    from mesh.launch.finding import has_error
    from mesh.launch.plan import Options, make_plan
    from mesh.launch.plugins import load_plugins
    from mesh.launch.selection import choose
    from mesh.launch.validate import Rules, validate

    config = loaded(args)
    file = recipe_at(args.recipe, config)
    plugins = load_plugins()
    findings = validate(file, Rules(config.config.default_port, staging=plugins.staging))
    chosen = choose(config.config, file.recipe, wish_of(args))
    options = Options(args.mirror, args.hf_cache, args.stage, args.clear)
    plan = make_plan(config.config, file, chosen, run="DRY-RUN", options=options, plugins=plugins)
    if args.json:
        emit({**plan.to_map(), "ok": not has_error(findings), "findings": _maps(findings)})
    else:
        nodes = ", ".join(node.name for node in chosen.nodes)
        say(f"# {file.name} on {chosen.cluster.name}: {nodes}; nothing is run")
        for phase, steps in plan.phases.items():
            for step in steps:
                warns = " (a failure only warns)" if step.on_failure == "warn" else ""
                say(f"# {phase}: {step.node}: {step.what}{warns}")
                say(step.command)
        for one in findings:
            note(one.words())
    return REFUSED if has_error(findings) else ACCEPTED


def run_pin(args: argparse.Namespace) -> int:
    from mesh.cli.newfile import rewrite
    from mesh.launch.pins import HUB, ModelPin, Web, cached_pin, folder_pin, hub_pin, image_digest, write_pins

    config = loaded(args)
    file = recipe_at(args.recipe, config)
    recipe = file.recipe
    model: ModelPin | None = None
    if not args.no_model:
        revision = recipe.revision or "main"
        if args.model_dir is not None:
            model = folder_pin(args.model_dir)
        elif recipe.local_model:
            if recipe.model not in ("reference", "packaged"):
                model = folder_pin(Path(os.path.expanduser(recipe.model)))
        else:
            found = None if args.cache is None else cached_pin(recipe.repo, revision, args.cache)
            model = found or hub_pin(recipe.repo, revision, hub=args.hub or HUB, web=Web())
    image = None
    if not args.no_image and recipe.docker_image is not None and recipe.deploy == "docker":
        image = image_digest(recipe.docker_image, web=Web())
    if model is None and image is None:
        raise UsageError(f"recipe {file.name}: nothing to pin")
    text = write_pins(file.data.decode("utf-8"), model=model, image=image)
    if not args.dry_run:
        rewrite(file.path, text.encode("utf-8"))
    pins = {
        "image": image,
        "model_revision": None if model is None else model.revision,
        "model_files": {} if model is None else dict(model.files),
    }
    if args.json:
        emit({"recipe": file.name, "written": not args.dry_run, **pins})
    else:
        for what in ("image", "model_revision"):
            if pins[what] is not None:
                say(f"{what} {pins[what]}")
        files = {} if model is None else model.files
        for name, digest in sorted(files.items()):
            say(f"{digest} {name}")
    return ACCEPTED


def run_config(args: argparse.Namespace) -> int:
    from mesh.launch.plugins import load_plugins

    config = loaded(args)
    values = config.config.model_dump(mode="json", exclude_none=True)
    for name in ("home_assistant", "mikrotik"):
        if name in values:
            values[name] = "(for a plug-in)"  # they hold tokens and passwords
    if args.json:
        emit({"files": config.digests, "values": values, "origins": dict(config.origins)})
        return ACCEPTED
    for name, digest in config.digests.items():
        say(f"file {name} sha256 {digest}")
    for key, value in values.items():
        say(f"{key} = {value!r}  # {config.origins.get(key, 'default')}")
    for cluster in config.config.clusters:
        origin = config.origins[f"clusters.{cluster.name}"]
        say(f"cluster {cluster.name}: {counted(len(cluster.nodes), 'node')}  # {origin}")
    for key in config.unused(load_plugins().tables):
        note(f"{key}: read by plug-ins alone, and none is there")
    return ACCEPTED
