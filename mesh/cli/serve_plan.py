"""What `mesh serve` is to run, from its flags or from a `mesh.toml`; nothing of it is started here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mesh.cli.candidates import spec_of_candidate
from mesh.cli.engines import BLUEPRINT_FLAGS, ENGINE_FLAGS, PACKAGED, kind_of, packaged_model, spec_of, spelled
from mesh.cli.governed import blueprints_of
from mesh.cli.granted import Granted
from mesh.cli.meter_flags import FLAGS, configured, flagged, with_gpus
from mesh.cli.specs import EngineSpec, GgufSpec, MeterSpec, ReferenceSpec, VllmSpec
from mesh.cli.state import State, state_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.gateway.backends import Route
    from mesh.gateway.config import (
        Backend,
        BlueprintsConfig,
        GatewayConfig,
        GgufBackend,
        GrantsConfig,
        ManagedVllmBackend,
    )

DAY_NS: Final = 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a gateway is started with."""

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


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags, or the `mesh.toml` that they name, say. Raises UsageError for what does not go together."""
    from mesh.gateway.backends import Route
    from mesh.gateway.config import GatewayConfig, MeshConfig

    if args.config is None:
        if kind_of(args) is None:
            raise UsageError("name an engine (--gguf FILE, --vllm URL or --reference) or a --config")
        keep_ns = None if args.keep_days is None else args.keep_days * DAY_NS
        spec = with_gpus(spec_of(args), args.gpus)
        meter = flagged(args, cpu_watts_u=args.cpu_watts, calibration=args.cpu_calibration)
        granted = Granted(tuple(args.issuer or ()), args.revoked)
        routes = [Route(*of_candidate(spec, (), None))]
        return Plan(
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
        Route(*of_candidate(spec, tuple(backend.aliases), backend.queue))
        for spec, backend in zip(specs, config.backend, strict=True)
    ]
    return Plan(
        state, specs, configured(config.meter, base), _overridden(config.gateway, args), config.auth.keys,
        config.disclosures.keep_ns, routes,
        config.cors.origins, _granted(config.grants, args.config), _allowed_lower(args, specs),
        tuple(None if one.launch_record is None else base / one.launch_record for one in config.backend),
        args.launch_state or (None if config.launch is None else base / config.launch.state),
    )  # fmt: skip


def of_candidate(spec: EngineSpec, aliases: tuple[str, ...], queue: int | None) -> tuple[tuple[str, ...], int | None]:
    """A candidate is asked for by its logical model too, and no more may wait than it was measured with."""
    candidate = None if isinstance(spec, ReferenceSpec) else spec.candidate
    if candidate is None:
        return aliases, queue
    waiting = candidate.queue if queue is None else min(queue, candidate.queue)
    return tuple(dict.fromkeys((candidate.logical_model, *aliases))), waiting


def _granted(config: GrantsConfig, file: Path) -> Granted:
    base = file.parent
    issuers = tuple(one if one.startswith("ed25519:") else str(base / one) for one in config.issuers)
    revoked = None if config.revoked is None else base / config.revoked
    return Granted(issuers, revoked, config.leeway_s, f"{file}: grants.issuers")


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
