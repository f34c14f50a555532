"""`mesh launch report`: recipes with their runs and benches, as a table, as Markdown, or as one page."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, printable, say
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.launch_flags import add_common_flags, loaded, recipe_at
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.cli.launch_reports import Told
    from mesh.launch.bench_package import Package
    from mesh.launch.config import Loaded

_SUMMARY = ("recipe", "model", "state", "launches", "bench", "where it comes from")


def add(actions: Any) -> None:
    parser = actions.add_parser(
        "report",
        help="recipes with their runs, benches, provenance and drift",
        description="Exit 10 where a package is damaged or not whole; it is named, and the others are shown.",
    )
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE", help="recipes, or one manifest of a bench (all recipes)"
    )
    parser.add_argument(
        "--format", choices=("table", "md", "html"), help="how it is told (table; html for a .html file)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there; must not exist")
    parser.add_argument("--live", action="store_true", help="ask the nodes of open runs what runs there")
    parser.add_argument("--archived", action="store_true", help="the recipes that were put away, and not the others")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--archive", metavar="RECIPE", help="put a recipe away: set its archived key")
    which.add_argument("--unarchive", metavar="RECIPE", help="take it out again")
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.cli.launch_reports import gather

    config = loaded(args)
    if args.archive or args.unarchive:
        return _archive(args, config)
    one = _package(args)
    if one is not None:
        return _show_package(args, one)
    recipes = gather(args.recipes, config, live=args.live, archived=args.archived)
    damaged = sum(len(each.damaged) for each in recipes)
    if args.json:
        _no_text(args)
        emit({"ok": not damaged, "recipes": [each.to_map() for each in recipes]})
    else:
        _write(args, _rendered(_format(args), recipes, settings=bool(args.recipes)))
    return REFUSED if damaged else ACCEPTED


def _package(args: argparse.Namespace) -> Package | None:
    from mesh.launch.bench_package import MANIFEST, load_package

    named = [name for name in args.recipes if name.endswith(MANIFEST)]
    if not named:
        return None
    if len(args.recipes) > 1:
        raise UsageError("one manifest, or recipes: not several of both")
    return load_package(Path(named[0]))


def _format(args: argparse.Namespace) -> str:
    if args.format is not None:
        return str(args.format)
    suffix = "" if args.out is None else args.out.suffix
    return {".html": "html", ".md": "md"}.get(suffix, "table")


def _no_text(args: argparse.Namespace) -> None:
    if args.format is not None or args.out is not None:
        raise UsageError("--json is a form of its own: not with --format or --out")


def _show_package(args: argparse.Namespace, one: Package) -> int:
    from mesh.cli.launch_tables import HEADINGS, drift_lines, facts, rows, terminal_table, when

    if args.json:
        _no_text(args)
        emit({"ok": True, "manifest": one.manifest.model_dump(exclude_none=True),
              "data": one.data.model_dump(exclude_none=True)})  # fmt: skip
        return ACCEPTED
    match _format(args):
        case "md":
            from mesh.cli.launch_tables import markdown_report

            _write(args, markdown_report(one.manifest, one.data).encode())
        case "html":
            raise UsageError("the page is of recipes: name the recipe, and not a manifest")
        case _:
            lines = [f"{one.manifest.recipe}, {one.manifest.label}. {when(one.data)}",
                     terminal_table(HEADINGS, rows(one.data)),
                     *(f"{name}: {value}" for name, value in facts(one.manifest, one.data)),
                     *(f"drift: {line}" for line in drift_lines(one.manifest))]  # fmt: skip
            _write(args, ("\n".join(lines) + "\n").encode())
    return ACCEPTED


def _rendered(form: str, recipes: list[Told], *, settings: bool) -> bytes:
    from mesh.cli.launch_tables import markdown_table, terminal_table

    if form == "html":
        from mesh.cli.launch_report_page import page

        return page(recipes, time.time_ns())
    lines = [_line(one) for one in recipes]
    if form == "md":
        return _markdown(recipes, markdown_table(_SUMMARY, lines))
    table = [terminal_table(_SUMMARY, lines)] if lines else ["no recipe, and no run of one"]
    remarks = [words for one in recipes for words in _remarks(one)]
    remarks += [f"{one.name}: {each.words()}" for one in recipes for each in one.settings] if settings else []
    return ("\n".join([*table, *map(printable, remarks)]) + "\n").encode()


def _line(one: Told) -> tuple[str, ...]:
    last = one.packages[-1] if one.packages else None
    if last is None:
        return (one.name, one.shown_model, one.state, str(one.launches), "none", "not known")
    changed = " (changed)" if one.stale(last) or last.manifest.drift else ""
    return (one.name, one.shown_model, one.state, str(one.launches), last.manifest.stem, last.chip + changed)


def _remarks(one: Told) -> list[str]:
    lines = [f"drift: {line}" for line in one.drift] + [f"not known: {line}" for line in one.unknown]
    lines += [f"damaged: {line}" for line in one.damaged] + ([one.fault] if one.fault else [])
    if one.why:
        lines.insert(0, f"{one.state}: {one.why}")
    return [f"{one.name}: {line}" for line in lines]


def _markdown(recipes: list[Told], summary: str) -> bytes:
    from mesh.cli.launch_tables import HEADINGS, escaped, markdown_table, rows
    from mesh.cli.words import utc

    parts = ["# Launches and benches", summary]
    for one in recipes:
        parts.append(f"## {escaped(one.name)}")
        remarks = [f"- {escaped(words.removeprefix(f'{one.name}: '))}" for words in _remarks(one)]
        parts += ["\n".join(remarks)] if remarks else []
        parts += ["Settings in force:\n\n" + "\n".join(f"- {escaped(each.words())}" for each in one.settings)] * bool(
            one.settings
        )
        for package in reversed(one.packages):
            manifest = package.manifest
            changed = "; the recipe has changed since" if one.stale(package) else ""
            parts.append(f"### {escaped(manifest.label)}, {utc(manifest.ended_ms * 10**6)}")
            parts += [markdown_table(HEADINGS, rows(package.data)), f"From {escaped(package.chip)}{changed}."]
    return ("\n\n".join(parts) + "\n").encode()


def _write(args: argparse.Namespace, data: bytes) -> None:
    from mesh.cli.newfile import write_new

    if args.out is None:
        say(data.decode().rstrip("\n"))
        return
    write_new(args.out, [data])
    note(f"{args.out}: {len(data)} bytes")


def _archive(args: argparse.Namespace, config: Loaded) -> int:
    from mesh.cli.newfile import rewrite
    from mesh.launch.archiving import set_archived
    from mesh.launch.recipe import RecipeFile

    file = recipe_at(args.archive or args.unarchive, config)
    text = set_archived(file.data.decode("utf-8"), archived=args.archive is not None)
    RecipeFile.of(text.encode("utf-8"), file.path)  # still a recipe
    if text.encode("utf-8") != file.data:
        rewrite(file.path, text.encode("utf-8"))
    if args.json:
        emit({"recipe": file.name, "archived": args.archive is not None})
    else:
        say(f"{file.name}: {'archived' if args.archive else 'in use'}")
    return ACCEPTED
