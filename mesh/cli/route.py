"""`mesh route`: one model over several hosts, looked at before it may serve."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import emit, note, say
from mesh.cli.engines import positive
from mesh.cli.exits import ACCEPTED, REFUSED
from mesh.cli.specs import DEVICES, DTYPES, VllmSpec
from mesh.cli.state import add_state_flag, state_of
from mesh.errors import LedgerLocked, RouteIncompatible

if TYPE_CHECKING:
    from mesh.cli.state import State
    from mesh.engine.vllm import VllmEngine
    from mesh.identity.registry import RecipeStatus
    from mesh.identity.shard_route import ShardRoute
    from mesh.ledger import Ledger

_SESSION_BYTES = 8


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "route",
        help="one model over several hosts: look at it, certify it",
        description="A vLLM server that is split by layers over several hosts serves users only when a real forward "
        "has certified its recipe. Each of its hosts has to say what it computes: start it with VLLM_SERVER_DEV_MODE=1 "
        "and --worker-extension-cls mesh.engine.vllm_rank.MeshRank, where only this machine reaches it.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    checking = actions.add_parser(
        "check", help="what each host computes and holds, and whether it is one model; exit 10 where not"
    )
    certifying = actions.add_parser(
        "certify", help="run a real forward, and take the recipe out of the dark by it; not while a gateway serves"
    )
    certifying.add_argument(
        "--against", metavar="URL", help="a vLLM server with the same model unsplit, which has to give the same ids"
    )
    showing = actions.add_parser("list", help="the recipes that are known, and which of them are certified")
    for each, run in ((checking, run_check), (certifying, run_certify), (showing, run_list)):
        each.set_defaults(run=run)
        each.add_argument("--json", action="store_true", help="print one JSON object")
        if each is not checking:
            add_state_flag(each)
        if each is not showing:
            _add_route_flags(each)


def _add_route_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("route")
    group.add_argument("--vllm", metavar="URL", required=True, help="the vLLM server that is split")
    group.add_argument("--weights", metavar="DIR", required=True, help="the folder of the whole model")
    group.add_argument("--dtype", choices=DTYPES, help="what it computes in: told, as it does not say")
    group.add_argument("--device", choices=DEVICES, help="what it runs on: told, as it does not say")
    group.add_argument("--model", metavar="NAME", help="which of its models, where it has several")
    group.add_argument("--name", help="the served model's name (default: the server's)")
    group.add_argument("--vllm-key-file", metavar="FILE", help="the bearer token that it wants")
    group.add_argument(
        "--start-s", metavar="SECONDS", type=positive,
        help="how long its hosts may take until all are there and it answers (default: it has to answer now)",
    )  # fmt: skip


def run_check(args: argparse.Namespace) -> int:
    try:
        route = asyncio.run(_checked(_spec(args), args.start_s))
    except RouteIncompatible as e:
        if args.json:
            emit({"compatible": False, "mismatches": e.reasons})
        else:
            for reason in e.reasons:
                where = "" if reason["shard_index"] is None else f"shard {reason['shard_index']}: "
                say(f"{where}{reason['reason']}: {reason['detail']}")
        return REFUSED
    if args.json:
        emit({"compatible": True, **route.to_map()})
    else:
        _say(route)
    return ACCEPTED


async def _checked(spec: VllmSpec, start_s: int | None) -> ShardRoute:
    engine = await _started(spec, start_s)
    try:
        return _route(engine)
    finally:
        await engine.close()


def run_certify(args: argparse.Namespace) -> int:
    status = asyncio.run(_certified(args))
    if args.json:
        emit(status.to_map())
    else:
        say(status.detail)
    return ACCEPTED


async def _certified(args: argparse.Namespace) -> RecipeStatus:
    from mesh.steward.certification import certify

    spec, state = _spec(args), state_of(args)
    with ExitStack() as held:
        ledger = None
        if state.begun:  # taken first, so that nothing is computed for one that somebody else has
            ledger = held.enter_context(_ledger(state))
        else:
            state.check_place()
        engine = await _started(spec, args.start_s)
        try:
            _say(_route(engine), note)
            against = None if args.against is None else await _started(replace(spec, url=args.against, route=False))
            try:
                ledger = ledger or held.enter_context(_ledger(state))
                return await certify(
                    engine, ledger, session=os.urandom(_SESSION_BYTES).hex(), at_ns=time.time_ns(), against=against
                )
            finally:
                if against is not None:
                    await against.close()
        finally:
            await engine.close()


def _ledger(state: State) -> Ledger:
    from mesh.ledger import Ledger

    try:
        return Ledger.open(state.ledger, steward=state.own_key().public)
    except LedgerLocked as e:
        raise LedgerLocked(
            f"{e}: a gateway keeps its ledger to itself and takes up a route when it starts: stop it, certify, start it"
        ) from None


def run_list(args: argparse.Namespace) -> int:
    with state_of(args).open_reader() as reader:
        registry = reader.registry()
    if args.json:
        emit(registry.to_map())
        return ACCEPTED
    for status in registry.known:
        of = status.fingerprint
        say(f"{status.status} {of.recipe_id} sha256:{of.runtime_recipe_digest} of sha256:{of.model_artifact_digest}")
    if not registry.known:
        note("no recipe is known here")
    return ACCEPTED


def _spec(args: argparse.Namespace) -> VllmSpec:
    return VllmSpec(
        args.vllm, name=args.name, model=args.model, weights=Path(args.weights), dtype=args.dtype, device=args.device,
        key_file=None if args.vllm_key_file is None else Path(args.vllm_key_file), route=True,
    )  # fmt: skip


async def _started(spec: VllmSpec, start_s: int | None = None) -> VllmEngine:
    from mesh.cli.starting import answering, check_files, start_engine
    from mesh.engine.vllm import VllmEngine

    check_files(spec)
    if start_s is not None:
        await answering(spec, start_s)
    engine = await start_engine(spec)
    assert isinstance(engine, VllmEngine)
    return engine


def _route(engine: VllmEngine) -> ShardRoute:
    assert engine.shard_route is not None
    return engine.shard_route


def _say(route: ShardRoute, tell: Any = say) -> None:
    for node, shard in zip(route.nodes, route.shards, strict=True):
        held = "the whole model" if shard.artifact.derived_from is None else "a cut of it"
        tell(f"{node}: layers {shard.shard_start} to {shard.shard_end}, holds {held}")
    machines = len(set(route.machines))
    tell(f"route {route.digest.text}" + (", on one machine" if machines == 1 else ""))
