"""`mesh conformance`: make the vectors of the format again, and run a client of it against them.

The vectors and what makes them lie beside the package in a checkout, and in no wheel.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import mesh
from mesh.cli.audit_progress import Progress
from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED, NOT_RUN, REFUSED

ROOT = Path(__file__).parent.parent.parent


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("conformance", help="the vectors of the format, and whether a client passes them")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    making = actions.add_parser(
        "regenerate",
        help="make vectors/v1 again",
        description="Makes every file under vectors/v1 again: the same bytes, or what was changed shows.",
    )
    making.add_argument("--check", action="store_true", help="change nothing; name each file that is not as made here")
    making.add_argument("--json", action="store_true", help="print one JSON object")
    making.set_defaults(run=_with_pack(run_regenerate))
    running = actions.add_parser(
        "run",
        help="ask a client every question of the vectors",
        description="Asks CLIENT every question of vectors/v1 (conformance/PROTOCOL.md) and compares. Exit code 0: it "
        "passed; 10: it did not. Put -- before CLIENT. Without one this package's own is asked, which is loaded once "
        "and forked for each case: that takes seconds, where starting a Python for each takes minutes.",
    )
    running.add_argument("client", nargs="*", metavar="CLIENT", help="the client's command line; none: this package's")
    running.add_argument("--only", default="", metavar="PREFIX", help="ask only where the case's id starts so")
    running.add_argument(
        "--expect-failures",
        type=Path,
        metavar="FILE",
        help="ids of cases that are known to fail, one a line; one that passes is a failure",
    )
    running.add_argument("--vectors", type=Path, metavar="DIR", help="vectors from another place")
    running.add_argument("--json", action="store_true", help="print one JSON object")
    running.set_defaults(run=_with_pack(run_client))


def run_regenerate(args: argparse.Namespace) -> int:
    made = importlib.import_module("conformance.regenerate")
    files = made.tree()
    if not args.check:
        changed = made.write(files, made.VECTORS)
        if args.json:
            emit({"files": len(files), "changed": changed})
        else:
            say(f"{len(files)} files in {made.VECTORS}, {changed} of them changed")
        return ACCEPTED
    found = made.differences(files, made.VECTORS)
    if args.json:
        emit({"files": len(files), "differences": found})
    else:
        for line in found:
            say(line)
    return REFUSED if found else ACCEPTED


def run_client(args: argparse.Namespace) -> int:
    runner = importlib.import_module("conformance.runner")
    with Progress() as bar, _asked(args.client) as ask:
        report = runner.run(
            args.vectors or ROOT / "vectors" / "v1",
            shlex.join(args.client) or f"mesh {mesh.__version__}",
            ask,
            only=args.only,
            expected_failures=args.expect_failures,
            counting=lambda total: bar.counting("cases", total=total),
        )
    if args.json:
        emit(report.to_json())
    else:
        for line in report.lines():
            say(line)
    return REFUSED if report.failed else ACCEPTED


def _asked(client: list[str]) -> AbstractContextManager[Any]:
    """Whom the runner asks."""
    if not client:
        own: AbstractContextManager[Any] = importlib.import_module("conformance.forked").Forked()
        return own
    runner = importlib.import_module("conformance.runner")
    return nullcontext(runner.program(runner.absolute(client, Path.cwd())))


def _with_pack(action: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """An action that needs the pack beside this package, and says what is wrong with it."""

    def run(args: argparse.Namespace) -> int:
        if not (ROOT / "conformance" / "sums.py").is_file():
            missing = (
                f"the conformance pack is not part of an installed package: {ROOT / 'conformance'} is not there; "
                "run this from a checkout, or conformance/run.sh of one, which needs no Python"
            )
            return _not_run(missing, "no-pack", as_json=args.json)
        if str(ROOT) not in sys.path:
            sys.path.insert(0, str(ROOT))
        try:
            return action(args)
        except importlib.import_module("conformance.sums").CannotRun as e:
            return _not_run(str(e), as_json=args.json)
        except ModuleNotFoundError as e:
            if e.name is None or not e.name.startswith("conformance."):
                raise
            return _not_run(f"{ROOT / e.name.replace('.', '/')}.py: expected this file of the pack", as_json=args.json)

    return run


def _not_run(message: str, code: str = "cannot-run", *, as_json: bool) -> int:
    if as_json:
        emit({"error": {"code": code, "message": message}})
    else:
        note(f"mesh conformance: {message}")
    return NOT_RUN
