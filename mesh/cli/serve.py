"""`mesh serve`: the gateway, from flags or from a `mesh.toml`, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import add_engine_flags, positive
from mesh.cli.exits import ACCEPTED, USAGE
from mesh.cli.governed import blueprints_of
from mesh.cli.logs import FORMATS, to_stderr
from mesh.cli.loop import loop_of, one_heap, settle
from mesh.cli.meter_flags import add_calibration_flag, add_gpus_flag, add_meter_flags
from mesh.cli.serve_plan import DAY_NS, Plan, plan_of
from mesh.cli.state import add_state_flag

if TYPE_CHECKING:
    from mesh.gateway.app import Gateway
    from mesh.gateway.auth import Authenticator

log = logging.getLogger("mesh.serve")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve models on loopback, with a receipt for every answer",
        description="Serve models behind OpenAI's API. Either --config, or the flags of one engine.",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="a mesh.toml; --host, --port and --state override it"
    )
    add_engine_flags(parser, required=False)
    add_flags(parser)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What any engine is served with."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1); another than loopback needs [auth] keys")
    parser.add_argument("--port", type=port, help="port to listen on (8080; 0 takes a free one)")
    parser.add_argument(
        "--uvloop", action=argparse.BooleanOptionalAction, default=None,
        help="the event loop: uvloop, or asyncio's own (uvloop where it is installed: less CPU for each serve)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-days", type=positive, metavar="N", help="keep prompts and answers so long, to be disclosed later"
    )
    parser.add_argument(
        "--issuer", action="append", metavar="KEY|FILE", help="take grants of this key, or of those in a trust file"
    )
    parser.add_argument("--revoked", type=Path, metavar="FILE", help="block ids, of which no grant may hold one")
    parser.add_argument(
        "--allow-lower-revision", action="store_true",
        help="serve under a blueprint although a higher revision of it was served before; the ledger keeps that",
    )  # fmt: skip
    parser.add_argument(
        "--launch-record", type=Path, metavar="FILE", help="the record of how the engine was launched, for its receipts"
    )
    parser.add_argument(
        "--launch-state", type=Path, metavar="DIR", help="where `mesh launch` keeps its runs, for the page to show"
    )
    parser.add_argument("--log", choices=FORMATS, default="text", help="lines on stderr for people (text), or JSON")
    parser.add_argument("--check", action="store_true", help="say what would run and what is wrong, and start nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object once it serves, or of the check")
    add_state_flag(parser)
    add_calibration_flag(parser)
    add_gpus_flag(parser)
    add_meter_flags(parser)
    parser.set_defaults(run=run)


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a port, 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    plan = plan_of(args)
    if args.check:
        return _check(plan, as_json=args.json)
    to_stderr(args.log)
    loop = loop_of(args.uvloop)
    one_heap()
    for_people = args.log == "text"
    # a serve's own line is for programs: for people, the line of its request says enough
    serving = _serve(plan, note if for_people else log.info, as_json=args.json, journal=not for_people)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(serving)
    return 0


def _check(plan: Plan, *, as_json: bool) -> int:
    from mesh.cli.checking import checked, of_address
    from mesh.meter.cpu_time import cpu_time_method
    from mesh.meter.cpu_time import watts as in_watts

    backends = checked(plan.specs, plan.routes, plan.launches)
    faults = [
        *of_address(plan.gateway.host, plan.keys, plan.granted),
        *(fault for one in backends for fault in one.faults),
    ]
    where = f"{_bracketed(plan.gateway.host)}:{plan.gateway.port}"
    watts = None if plan.meter.cpu_watts_u is None else in_watts(plan.meter.cpu_watts_u)
    days = None if plan.keep_ns is None else plan.keep_ns // DAY_NS
    if as_json:
        told = {"listen": where, "state": str(plan.state.root), "keys": len(plan.keys), "kept_days": days}
        told["cpu_watts"] = watts
        if plan.meter.cpu_watts_u is not None:
            told["cpu_time"] = cpu_time_method(plan.meter.cpu_watts_u, plan.meter.cpu_fitted)
        told["meters"] = plan.meter.names
        emit({**told, "backends": [one.to_map() for one in backends], "faults": faults})
    else:
        keys = f"for {counted(len(plan.keys), 'key')}" if plan.keys else "without keys"
        say(f"listens on {where} {keys}")
        say(f"state in {plan.state.root}" + ("" if plan.state.key.exists() else ", with a key that is yet to be made"))
        if plan.meter.empty:
            say("energy: no meter")
        band = "" if plan.meter.cpu_fitted is None else f", give or take {in_watts(plan.meter.cpu_fitted[0])} W"
        for name in plan.meter.names:
            cpu = watts is not None and name == "cpu-time"
            say("energy: " + (f"cpu time at {watts} W{band}, modelled" if cpu else name))
        say(
            "prompts and answers are not kept"
            if days is None
            else f"prompts and answers are kept {counted(days, 'day')}"
        )
        for one in backends:
            say(one.words())
        for fault in faults:
            note(f"mesh serve: {fault}")
    return USAGE if faults else ACCEPTED


async def _serve(plan: Plan, note: Callable[[str], None], *, as_json: bool, journal: bool) -> None:
    from mesh.gateway.auth import Gatekeeper, StaticKeys
    from mesh.gateway.listening import take_address

    # a mistake in the address is found before anything is made or loaded
    authenticators = plan.granted.authenticators()
    Gatekeeper([*([StaticKeys(plan.keys)] if plan.keys else []), *authenticators]).check_bind(plan.gateway.host)
    taken = take_address(plan.gateway.host, plan.gateway.port)
    try:
        await _serve_on(taken, plan, authenticators, note, as_json=as_json, journal=journal)
    finally:
        for each in taken:
            each.close()


async def _serve_on(
    taken: list[socket.socket],
    plan: Plan,
    authenticators: list[Authenticator],
    note: Callable[[str], None],
    *,
    as_json: bool,
    journal: bool,
) -> None:
    from mesh.cli.assembly import assembled, engine_notes
    from mesh.gateway.app import Gateway
    from mesh.schema.ids import steward_text

    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    async with assembled(
        plan.state,
        plan.specs,
        meter=plan.meter,
        keep_ns=plan.keep_ns,
        note=note,
        allow_lower=plan.allow_lower,
        launches=plan.launches,
    ) as mesh:
        gateway = Gateway(
            mesh.steward, mesh.engines, plan.gateway, keys=plan.keys, authenticators=authenticators,
            routes=plan.routes, origins=plan.origins, journal=journal,
            blueprints=blueprints_of(plan.specs), launches=plan.launch_state,
        )  # fmt: skip
        bound = await gateway.start(plan.gateway.host, plan.gateway.port, taken)
        try:
            url = f"http://{_bracketed(plan.gateway.host)}:{bound}"
            steward = steward_text(mesh.steward.public)
            if mesh.recovered:
                note(
                    f"sealed {counted(len(mesh.recovered), 'serve')} that the last run left unfinished, as interrupted"
                )
            for line in engine_notes(mesh.engines):
                note(line)
            if plan.keep_ns is not None:
                days = counted(plan.keep_ns // DAY_NS, "day")
                note(f"prompts and answers are kept for {days}, to be disclosed to their callers")
            if plan.meter.empty:
                note("energy: no meter; --meter measures, --cpu-watts gives a modelled figure")
            else:
                for line in mesh.meter_notes:
                    note(line)
            models = gateway.backends.names
            note(f"serving {', '.join(models)} on {url}/v1, steward {steward}")
            if as_json:
                told = {"url": url, "steward": steward, "model": models[0], "models": models}
                emit({**told, "recovered": len(mesh.recovered)})
                sys.stdout.flush()
            settle()
            await stop.wait()
            note("stopping: no new serves, running ones may end; a second signal cuts them")
        finally:
            cutting = asyncio.ensure_future(_cut(gateway, hurry))
            await gateway.stop()
            cutting.cancel()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _cut(gateway: Gateway, hurry: asyncio.Event) -> None:
    await hurry.wait()
    gateway.hurry()
