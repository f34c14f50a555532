"""`mesh launch`: recipes checked, planned and pinned offline, and the configuration that is in force."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli import (
    launch_bench,
    launch_image,
    launch_import,
    launch_ledgers,
    launch_nodes,
    launch_plan,
    launch_plugins,
    launch_report,
    launch_runs,
    launch_web,
)
from mesh.cli.console import counted, emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import add_choice_flags, add_common_flags, ledgers, loaded, recipe_at, sources, user_config
from mesh.cli.launch_plan import maps
from mesh.errors import NotFound, UsageError

if TYPE_CHECKING:
    from mesh.launch.finding import Finding
    from mesh.launch.pins import ModelPin
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.seen_images import SeenImages


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
    parser.set_defaults(run=launch_plan.run_plan)


def _pin(actions: Any) -> None:
    parser = actions.add_parser("pin", help="resolve a recipe's model and image, and write the pins into it")
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name or file")
    parser.add_argument("--model-dir", type=Path, metavar="PATH", help="the model's own folder or file: digest that")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="a model cache of this machine to look in first")
    parser.add_argument("--hub", metavar="URL", help="the hub that is asked for the model (huggingface.co)")
    parser.add_argument("--no-image", action="store_true", help="leave the image as it is")
    parser.add_argument("--no-model", action="store_true", help="leave the model as it is")
    parser.add_argument("--dry-run", action="store_true", help="print the pins and write nothing")
    parser.add_argument("--check", action="store_true", help="hold what is there now to the pins, and write nothing")
    add_common_flags(parser)
    parser.set_defaults(run=run_pin)


def _config(actions: Any) -> None:
    parser = actions.add_parser("config", help="show the configuration in force, and which file says what")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--path", action="store_true", help="print the file that is read, and nothing else")
    group.add_argument("--init", action="store_true", help="write a first one at the user's place, where none is")
    add_common_flags(parser)
    parser.set_defaults(run=run_config)


def run_validate(args: argparse.Namespace) -> int:
    from mesh.launch.finding import error, has_error
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
        try:
            file = recipe_at(name, config)
        except (UsageError, OSError) as e:
            if args.recipes:
                raise
            failed = True  # of many, one that cannot be read hides no other
            words = str(e).removeprefix(f"{name}: ") if isinstance(e, UsageError) else (e.strerror or str(e)).lower()
            unreadable = [error("unreadable", RECIPE_FILE, words)]
            told.append({"recipe": Path(name).parent.name, "findings": maps(unreadable)})
            if not args.json:
                _print(Path(name).parent.name, unreadable)
            continue
        findings = validate(file, rules)
        failed = failed or has_error(findings)
        told.append({"recipe": file.name, "archived": file.recipe.archived, "findings": maps(findings)})
        if not args.json:
            _print(f"{file.name}{' (archived)' if file.recipe.archived else ''}", findings)
    if args.json:
        emit({"ok": not failed, "recipes": told})
    return REFUSED if failed else ACCEPTED


def _print(name: str, findings: list[Finding]) -> None:
    errors = sum(one.level == "error" for one in findings)
    warnings = sum(one.level == "warning" for one in findings)
    say(f"{name}: " + (f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if findings else "in order"))
    for one in findings:
        say("  " + one.words())


def run_pin(args: argparse.Namespace) -> int:
    from mesh.cli.newfile import rewrite
    from mesh.launch.images import is_built
    from mesh.launch.pins import HUB, Web, cached_pin, folder_pin, hub_pin, write_pins
    from mesh.launch.seen_images import SEEN_FILE, SeenImages

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
    if not args.no_image and recipe.docker_image is not None and recipe.deploy == "docker" and not is_built(file):
        image = _image(
            recipe.docker_image, recipe.pins.image, SeenImages(ledgers(config) / SEEN_FILE), check=args.check
        )
    if model is None and image is None:
        raise UsageError(f"recipe {file.name}: nothing to pin")
    if args.check:
        return _checked(args, file, model, image)
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


def _image(image: str, pinned: str | None, seen: SeenImages, *, check: bool) -> str:
    """The digest that the recipe runs. An image that its registry has no more is told with when it was last seen; with
    `check` so is a tag that is another image by now. The registry's answer is kept for the next time."""
    from mesh.launch.pins import Web, image_digest, image_there, registry_of, tag_words

    said = image.partition("@")[2] or (pinned if check else None)
    if said and not check:
        return image_digest(image, web=Web())
    try:
        digest = said or image_digest(image, web=Web())
        if said:
            image_there(image, said, web=Web())
    except NotFound as e:
        raise NotFound(f"{e}; {seen.words(image)}") from None
    if said and (moved := tag_words(image, said, web=Web())) is not None:
        note(moved)
    seen.add(image, what=digest, where=registry_of(image)[0], at_ns=time.time_ns())
    return digest


def _checked(args: argparse.Namespace, file: RecipeFile, model: ModelPin | None, image: str | None) -> int:
    """Hold what was resolved now to what the recipe pins."""
    recipe = file.recipe
    drift = []
    if image is not None and (pinned := (recipe.docker_image or "").partition("@")[2] or recipe.pins.image) != image:
        drift.append(f"image: {image} now, pinned {pinned or 'not at all'}")
    if model is not None and model.revision is not None and model.revision != recipe.revision:
        drift.append(f"model: {model.revision} now, pinned {recipe.revision or 'not at all'}")
    for name, digest in sorted(recipe.pins.model_files.items()):
        now = None if model is None else model.files.get(name, "gone")
        if now is not None and now != digest and now.partition(":")[0] in ("gone", digest.partition(":")[0]):
            drift.append(f"model file {name}: {now} now, pinned {digest}")
    if args.json:
        emit({"recipe": file.name, "ok": not drift, "drift": drift})
    for line in [] if args.json else drift or ["what is pinned is what is there"]:
        say(line)
    return REFUSED if drift else ACCEPTED


def run_config(args: argparse.Namespace) -> int:
    from mesh.launch.plugins import load_plugins

    if args.path or args.init:
        return _config_file(args)
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


TEMPLATE = """\
# Read where a working directory has no launch.toml of its own. Paths are relative to this file.
ssh_user = ""
ssh_key_path = "~/.ssh/id_ed25519"
recipe_sources = []   # more folders of recipes, each NAME/recipe.toml
cluster_sources = []  # more files with [[clusters]], [nccl.NAME] and [before_serve.NAME]
"""


def _config_file(args: argparse.Namespace) -> int:
    from mesh.cli.newfile import write_new
    from mesh.launch.config import find_config

    if args.init:
        path = args.config or user_config()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, [TEMPLATE.encode()])
    else:
        found = find_config(args.config, Path(), user_config())
        if found is None:
            raise NotFound(f"no launch.toml here and no {user_config()}; --init writes one")
        path = found
    if args.json:
        emit({"file": str(path)})
    else:
        say(str(path))
    return ACCEPTED
