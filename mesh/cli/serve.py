"""`mesh serve`: the gateway, from flags or from a `mesh.toml`, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.candidates import spec_of_candidate
from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import (
    BLUEPRINT_FLAGS,
    ENGINE_FLAGS,
    PACKAGED,
    add_engine_flags,
    kind_of,
    packaged_model,
    positive,
    spec_of,
    spelled,
)
from mesh.cli.exits import ACCEPTED, USAGE
from mesh.cli.governed import blueprints_of
from mesh.cli.granted import Granted
from mesh.cli.logs import FORMATS, to_stderr
from mesh.cli.loop import loop_of, one_heap, settle
from mesh.cli.meter_flags import (
    FLAGS,
    add_calibration_flag,
    add_gpus_flag,
    add_meter_flags,
    configured,
    flagged,
    with_gpus,
)
from mesh.cli.specs import EngineSpec, GgufSpec, MeterSpec, ReferenceSpec, VllmSpec
from mesh.cli.state import State, add_state_flag, state_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.gateway.app import Gateway
    from mesh.gateway.auth import Authenticator
    from mesh.gateway.backends import Route
    from mesh.gateway.config import (
        Backend,
        BlueprintsConfig,
        GatewayConfig,
        GgufBackend,
        GrantsConfig,
        ManagedVllmBackend,
    )

log = logging.getLogger("mesh.serve")

_DAY_NS = 24 * 3600 * 10**9


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


@dataclass(frozen=True, slots=True)
class _Plan:
    state: State
    specs: list[EngineSpec]
    meter: MeterSpec
    gateway: GatewayConfig
    keys: list[str]
    keep_ns: int | None
    routes: list[Route]
    origins: list[str]
    granted: Granted
    allow_lower: bool = False
    launches: tuple[Path | None, ...] = ()
    launch_state: Path | None = None


def run(args: argparse.Namespace) -> int:
    plan = _plan(args)
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


def _check(plan: _Plan, *, as_json: bool) -> int:
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
    days = None if plan.keep_ns is None else plan.keep_ns // _DAY_NS
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


def _plan(args: argparse.Namespace) -> _Plan:
    from mesh.gateway.backends import Route
    from mesh.gateway.config import GatewayConfig, MeshConfig

    if args.config is None:
        if kind_of(args) is None:
            raise UsageError("name an engine (--gguf FILE, --vllm URL or --reference) or a --config")
        keep_ns = None if args.keep_days is None else args.keep_days * _DAY_NS
        spec = with_gpus(spec_of(args), args.gpus)
        meter = flagged(args, cpu_watts_u=args.cpu_watts, calibration=args.cpu_calibration)
        granted = Granted(tuple(args.issuer or ()), args.revoked)
        routes = [Route(*_of_candidate(spec, (), None))]
        return _Plan(
            state_of(args), [spec], meter, _overridden(GatewayConfig(), args), [], keep_ns, routes, [], granted,
            _allowed_lower(args, [spec]), (args.launch_record,), args.launch_state,
        )  # fmt: skip
    given = [flag for flag in (*ENGINE_FLAGS, *BLUEPRINT_FLAGS) if getattr(args, flag)]
    given += [
        flag for flag in ("keep_days", "issuer", "revoked", "launch_record", *FLAGS) if getattr(args, flag) is not None
    ]
    if given:
        names = ", ".join(map(spelled, given))
        raise UsageError(f"--config says which engine, meter and disclosures; {names} does not go with it")
    config = MeshConfig.load(args.config)
    base = args.config.parent
    state = State(base / config.state.dir) if args.state is None else state_of(args)
    specs = [backend_spec(backend, base, config.blueprints) for backend in config.backend]
    routes = [
        Route(*_of_candidate(spec, tuple(backend.aliases), backend.queue))
        for spec, backend in zip(specs, config.backend, strict=True)
    ]
    return _Plan(
        state, specs, configured(config.meter, base), _overridden(config.gateway, args), config.auth.keys,
        config.disclosures.keep_ns, routes,
        config.cors.origins, _granted(config.grants, base), _allowed_lower(args, specs),
        tuple(None if one.launch_record is None else base / one.launch_record for one in config.backend),
        args.launch_state or (None if config.launch is None else base / config.launch.state),
    )  # fmt: skip


def _of_candidate(spec: EngineSpec, aliases: tuple[str, ...], queue: int | None) -> tuple[tuple[str, ...], int | None]:
    """A candidate is asked for by its logical model too, and no more may wait than it was measured with."""
    candidate = None if isinstance(spec, ReferenceSpec) else spec.candidate
    if candidate is None:
        return aliases, queue
    waiting = candidate.queue if queue is None else min(queue, candidate.queue)
    return tuple(dict.fromkeys((candidate.logical_model, *aliases))), waiting


def _granted(config: GrantsConfig, base: Path) -> Granted:
    issuers = tuple(one if one.startswith("ed25519:") else str(base / one) for one in config.issuers)
    return Granted(issuers, None if config.revoked is None else base / config.revoked, config.leeway_s)


def _overridden(config: GatewayConfig, args: argparse.Namespace) -> GatewayConfig:
    given = {name: getattr(args, name) for name in ("host", "port") if getattr(args, name) is not None}
    return config.model_copy(update=given)


def _allowed_lower(args: argparse.Namespace, specs: Sequence[EngineSpec]) -> bool:
    """Raises UsageError where there is nothing that this could be about."""
    if args.allow_lower_revision and not blueprints_of(specs):
        raise UsageError("--allow-lower-revision: no engine here is under a blueprint")
    return bool(args.allow_lower_revision)


def backend_spec(backend: Backend, base: Path, blueprints: BlueprintsConfig | None = None) -> EngineSpec:
    """Paths in a config file are relative to that file."""

    def path(name: str | None) -> Path | None:
        return None if name is None else base / name

    def cards(gpus: list[int | str] | None) -> tuple[int | str, ...] | None:
        return None if gpus is None else tuple(gpus)

    if backend.kind in ("gguf", "vllm-managed") and backend.blueprint is not None:
        return _governed_spec(backend, base, blueprints)
    match backend.kind:
        case "reference":
            return ReferenceSpec(backend.name, slots=backend.slots, context=backend.context_tokens)
        case "gguf":
            return GgufSpec(
                packaged_model() if backend.path == PACKAGED else base / backend.path,
                name=backend.name, slots=backend.slots, context=backend.context_tokens, kv_type=backend.kv_type,
                flash_attention=backend.flash_attention, threads=backend.threads, ubatch=backend.ubatch,
                check_threads=backend.check_threads,
                chat_template=path(backend.chat_template), tokenizer_pre=backend.tokenizer_pre, eos_id=backend.eos_id,
                silent_s=backend.silent_s,
            )  # fmt: skip
        case "vllm":
            return VllmSpec(
                backend.url, name=backend.name, model=backend.model, slots=backend.slots,
                weights=path(backend.weights), tokenizer=path(backend.tokenizer),
                chat_template=path(backend.chat_template), dtype=backend.dtype, device=backend.device,
                key_file=path(backend.key_file), gpus=cards(backend.gpus), route=backend.route,
            )  # fmt: skip
        case "runtime":
            return spec_of_candidate(base / backend.path, path(backend.models), executable=backend.executable)
        case "vllm-managed":
            return VllmSpec(
                None, name=backend.name, slots=backend.slots, weights=base / backend.weights,
                tokenizer=path(backend.tokenizer), chat_template=path(backend.chat_template), device=backend.device,
                executable=backend.executable, flags=tuple(backend.flags), start_s=backend.start_s,
                gpus=cards(backend.gpus), route=backend.route,
            )  # fmt: skip


def _governed_spec(
    backend: GgufBackend | ManagedVllmBackend, base: Path, blueprints: BlueprintsConfig | None
) -> EngineSpec:
    from mesh.cli.governed import governed, spec_under

    assert backend.blueprint is not None
    assert blueprints is not None, "the configuration asks for roots where there is a blueprint"
    roots, revoked = [base / name for name in blueprints.roots], base / blueprints.revoked
    blueprint = governed(base / backend.blueprint, roots, revoked)
    if backend.kind == "gguf":
        path = packaged_model() if backend.path == PACKAGED else base / backend.path
        return spec_under(blueprint, gguf=path, silent_s=backend.silent_s)
    cards = None if backend.gpus is None else tuple(backend.gpus)
    return spec_under(
        blueprint, folder=base / backend.weights, executable=backend.executable, start_s=backend.start_s, gpus=cards
    )


async def _serve(plan: _Plan, note: Callable[[str], None], *, as_json: bool, journal: bool) -> None:
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
    plan: _Plan,
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
                days = counted(plan.keep_ns // _DAY_NS, "day")
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
