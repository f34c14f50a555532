"""`mesh launch import`: other systems' recipes as ours, with the list of what is unpinned, contradictory or dead."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.newfile import write_new
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.launch.finding import Finding
    from mesh.launch.views import View


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "import", help="convert others' recipes, and list what is unpinned, contradictory or dead"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recipes, Compose files, manifests")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write each recipe to DIR/NAME/recipe.toml")
    parser.add_argument(
        "--compare", action="store_true", help="take the files as views of one server, and show where they differ"
    )
    parser.add_argument("--env-file", type=Path, metavar="FILE", help="the variables of a Compose file")
    parser.add_argument("--engine-version", metavar="VERSION", help="hold the levers to this version of the engine")
    parser.add_argument(
        "--variant", default="default", metavar="NAME", help="which of a vllm-project recipe's variants"
    )
    parser.add_argument("--hardware", metavar="NAME", help="which hardware's flags of a vllm-project recipe")
    parser.add_argument("--strategy", default="single_node_tp", metavar="NAME", help="which of its strategies")
    parser.add_argument("--feature", action="append", metavar="NAME", help="its features (all but the opt-in ones)")
    parser.add_argument(
        "--take", action="append", default=[], metavar="[SETTING=]FILE", help="whose word counts where views clash"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.launch.finding import has_error

    env, env_source = _env(args.env_file)
    told: list[dict[str, Any]] = []
    views: list[View] = []
    failed = False
    for path in args.files:
        one, found, of_file = _one(path, args, env, env_source)
        failed = failed or has_error(found)
        views += of_file
        told.append({"file": str(path), **one, "findings": [finding.to_map() for finding in found]})
        if not args.json:
            _say(path, one, found, quiet=args.compare)
    rows = _compared(args, views, env, env_source) if args.compare else {}
    failed = failed or bool(rows)
    of_one = None
    if views and (args.take or (args.out is not None and all("recipe" not in one for one in told))):
        of_one, failed = _merged(args, views)
    if args.json:
        names = [view.source for view in views]
        emit({"ok": not failed, "files": told, **({"views": names, "differences": rows} if args.compare else {}),
              **({} if of_one is None else {"merged": of_one})})  # fmt: skip
    return REFUSED if failed else ACCEPTED


def _merged(args: argparse.Namespace, views: list[View]) -> tuple[dict[str, Any], bool]:
    """One recipe of all views, written where there is a place for it and nothing clashes."""
    from mesh.launch.finding import has_error
    from mesh.launch.merging import EVERYTHING, merged, merged_recipe

    take = {name or EVERYTHING: source for name, _, source in (one.rpartition("=") for one in args.take)}
    made, text = merged(views, take), None
    if not has_error(made.findings):
        text, file = merged_recipe(made, args.files[0].stem)
        if args.out is not None:
            folder = args.out / file.name
            folder.mkdir(parents=True, exist_ok=True)
            write_new(folder / "recipe.toml", [text.encode("utf-8")])
    if not args.json:
        for line in [] if text is None else text.rstrip().splitlines():
            say(line)
        for finding in made.findings:
            say(f"# {finding.words()}")
    told = {"recipe": text, "origins": made.origins, "findings": [one.to_map() for one in made.findings]}
    return {key: value for key, value in told.items() if value is not None}, has_error(made.findings)


def _env(path: Path | None) -> tuple[dict[str, str], str | None]:
    from mesh.launch.toml_file import read_bounded
    from mesh.launch.views import read_env_file

    if path is None:
        return {}, None
    return read_env_file(read_bounded(path).decode("utf-8", errors="replace")), path.name


def _one(
    path: Path, args: argparse.Namespace, env: dict[str, str], env_source: str | None
) -> tuple[dict[str, Any], list[Finding], list[View]]:
    from mesh.launch.foreign import dotted, read_yaml
    from mesh.launch.foreign_vllm import Choice
    from mesh.launch.importer import FORMS, form_of, import_recipe
    from mesh.launch.manifests import compose_findings, images_of, is_kubernetes, kubernetes_findings, loose_findings
    from mesh.launch.toml_file import read_bounded
    from mesh.launch.validate import comment_findings
    from mesh.launch.views import compose_views

    data = read_bounded(path)
    documents, found = read_yaml(data, str(path))
    documents = [one for one in documents if one is not None]
    text = data.decode("utf-8")
    found += [one for image in images_of(documents) for one in comment_findings(text, image)]
    if is_kubernetes(documents):
        return {"form": "kubernetes"}, [*found, *kubernetes_findings(documents)], []
    if len(documents) == 1 and isinstance(documents[0], dict) and "services" in documents[0]:
        more, views = compose_findings(documents[0], path.name, env, env_source)
        if args.compare:  # the env file is a view of its own there
            views = compose_views(documents[0], path.name, {}, None)
        return {"form": "compose", "services": [_view(view) for view in views]}, [*found, *more], views
    if all(form_of(one) is None for one in documents) and (loose := loose_findings(documents, ", ".join(FORMS))):
        return {"form": "unknown"}, [*found, *loose], []
    choice = Choice(args.variant, args.hardware, args.strategy, None if args.feature is None else tuple(args.feature))
    imported = import_recipe(data, str(path), choice=choice, engine_version=args.engine_version)
    if args.out is not None and not args.compare:
        folder = args.out / imported.file.name
        folder.mkdir(parents=True, exist_ok=True)
        write_new(folder / "recipe.toml", [imported.text.encode("utf-8")])
    done = {dotted(leaf): to for leaf, to in imported.done.items()}
    told = {"form": imported.form, "recipe": imported.text, "converted": done}
    return told, list(imported.findings), [imported.view]


def _view(view: View) -> dict[str, Any]:
    return {"engine": view.engine, "settings": view.settings, "environment": view.environment, "origins": view.origins}


def _say(path: Path, one: dict[str, Any], found: list[Finding], *, quiet: bool) -> None:
    say(f"# {path}: {one['form']}")
    if "recipe" in one and not quiet:
        say(one["recipe"].rstrip())
    for finding in found:
        say(f"# {finding.words()}")


def _compared(
    args: argparse.Namespace, views: list[View], env: dict[str, str], env_source: str | None
) -> dict[str, list[str | None]]:
    """Where the files differ. An env file is a view of its own, of what its Compose file takes from it."""
    from mesh.launch.foreign import read_yaml
    from mesh.launch.toml_file import read_bounded
    from mesh.launch.views import differences, env_view

    if env_source is not None:
        for path in args.files:
            document = read_yaml(read_bounded(path), str(path))[0][0]
            if isinstance(document, dict) and "services" in document:
                at = next((n for n, view in enumerate(views) if view.source == path.name), 0)
                views.insert(at + 1, env_view(document, env, env_source))
    if len(views) < 2:
        raise UsageError("--compare: fewer than two files that describe an engine")
    rows = differences(views)
    if not args.json:
        say("# setting: " + " | ".join(view.source for view in views))
        for name, values in rows.items():
            say(f"{name}: " + " | ".join("-" if value is None else value or "on" for value in values))
    return rows
