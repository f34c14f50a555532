"""`mesh identity`: what computes, exactly, and why two that should be the same are not."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import emit, note, say
from mesh.cli.engines import add_engine_flags, spec_of
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.specs import ReferenceSpec
from mesh.cli.state import add_state_flag, state_of
from mesh.errors import EngineUnidentified, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.cli.specs import EngineSpec
    from mesh.identity.mismatch import Mismatch
    from mesh.identity.shard import ShardIdentity


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "identity",
        help="what computes, exactly: print it, compare it, check a route of it",
        description="An identity names everything that moves a model's numbers. A file holds one in JSON, as "
        "`of` prints it; - is stdin.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    fingerprinting = actions.add_parser("fingerprint", help="the two digests that peers compare")
    fingerprinting.add_argument("file", metavar="FILE", help="an identity")
    fingerprinting.set_defaults(run=run_fingerprint)

    deriving = actions.add_parser(
        "of", help="the identity of an engine, in JSON", description="Starts the engine as `mesh serve` would."
    )
    add_engine_flags(deriving)
    deriving.set_defaults(run=run_of)

    explaining = actions.add_parser(
        "explain", help="every axis on which B is another than A; exit 10 where there is one"
    )
    explaining.add_argument("a", metavar="A", help="the identity that is expected")
    explaining.add_argument("b", metavar="B", help="the identity that is held to it")
    explaining.set_defaults(run=run_explain)

    checking = actions.add_parser(
        "check-route", help="whether the layers that several hosts compute make up one model; exit 10 where not"
    )
    checking.add_argument(
        "files", nargs="+", metavar="FILE", help="in the order of the route; all are held to the first"
    )
    checking.add_argument("--registry", action="store_true", help="the recipe also has to be certified in this state")
    checking.add_argument(
        "--for-certification", action="store_true", help="with --registry: known is enough, for a route to certify it"
    )
    add_state_flag(checking)
    checking.set_defaults(run=run_check_route)

    for action in (fingerprinting, deriving, explaining, checking):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run_fingerprint(args: argparse.Namespace) -> int:
    fingerprint = _read(args.file).fingerprint
    if args.json:
        emit(fingerprint.to_map())
    else:
        say(f"model artifact  {fingerprint.model_artifact_digest}")
        say(f"runtime recipe  {fingerprint.runtime_recipe_digest}")
    return ACCEPTED


def run_of(args: argparse.Namespace) -> int:
    import asyncio

    from mesh.cli.starting import check_files

    spec = spec_of(args)
    if isinstance(spec, ReferenceSpec):
        raise UsageError("--reference: the reference engine computes no model, so it has no identity")
    check_files(spec)
    note("starting the engine, to ask it what it is")
    emit(asyncio.run(_identity_of(spec)).to_map())
    return ACCEPTED


async def _identity_of(spec: EngineSpec) -> ShardIdentity:
    from mesh.cli.starting import start_engine
    from mesh.engine.protocol import identity_gap_of, identity_of

    engine = await start_engine(spec)
    try:
        identity = identity_of(engine)
        if identity is None:
            raise EngineUnidentified(identity_gap_of(engine) or f"{engine.recipe_id}: this engine has no identity")
        return identity
    finally:
        await engine.close()


def run_explain(args: argparse.Namespace) -> int:
    from mesh.identity.mismatch import explain

    mismatches = explain(_read(args.a), _read(args.b))
    return _verdict(mismatches, "the same: names, origins and layers apart, nothing differs", as_json=args.json)


def run_check_route(args: argparse.Namespace) -> int:
    from mesh.identity.route import check_route

    if args.for_certification and not args.registry:
        raise UsageError("--for-certification is about the registry: give --registry too")
    if args.files.count("-") > 1:
        raise UsageError("- can be read once")
    shards = [_read(file) for file in args.files]
    registry = None
    if args.registry:
        with state_of(args).open_reader() as reader:
            registry = reader.registry()
    mismatches = check_route(shards, registry=registry, for_certification=args.for_certification)
    return _verdict(mismatches, "a route: every layer is on a shard, and all compute the same", as_json=args.json)


def _verdict(mismatches: Sequence[Mismatch], good: str, *, as_json: bool) -> int:
    if as_json:
        emit({"compatible": not mismatches, "mismatches": [one.to_map() for one in mismatches]})
    elif mismatches:
        for one in mismatches:
            say(str(one))
    else:
        say(good)
    return REFUSED if mismatches else ACCEPTED


def _read(name: str) -> ShardIdentity:
    """Raises an Invalid that names the file, OSError."""
    from mesh.errors import Invalid
    from mesh.identity.document import MAX_DOCUMENT_BYTES
    from mesh.identity.files import open_regular
    from mesh.identity.shard import ShardIdentity

    if name == "-":
        data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
    else:
        with open_regular(Path(name)) as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    try:
        return ShardIdentity.from_json(data)
    except Invalid as e:
        raise type(e)(f"{'stdin' if name == '-' else name}: {e}") from None
