"""`mesh key`: the public half of the signing key, and a copy of the whole for safe keeping."""

from __future__ import annotations

import argparse
from pathlib import Path

from mesh.cli.console import emit, note, say
from mesh.cli.exits import ACCEPTED
from mesh.cli.state import add_state_flag, state_of


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("key", help="show the public key, or back up the signing key")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    showing = actions.add_parser("show", help="the public key, as --trust takes it")
    showing.set_defaults(run=run_show)
    backing = actions.add_parser("backup", help="copy the signing key to a new file that only you can read")
    backing.add_argument("--out", required=True, type=Path, metavar="FILE", help="must not exist")
    backing.set_defaults(run=run_backup)
    for action in (showing, backing):
        add_state_flag(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run_show(args: argparse.Namespace) -> int:
    from mesh.schema.ids import steward_text

    steward = steward_text(state_of(args).load_key().public)
    if args.json:
        emit({"steward": steward})
    else:
        say(steward)
    return ACCEPTED


def run_backup(args: argparse.Namespace) -> int:
    from mesh.schema.ids import steward_text
    from mesh.steward import keys

    state = state_of(args)
    keys.backup(state.key, args.out)
    steward = steward_text(keys.load(args.out).public)
    if args.json:
        emit({"steward": steward, "out": str(args.out)})
    else:
        note(f"signing key of {steward} copied to {args.out}: whoever reads it can sign as this steward")
    return ACCEPTED
