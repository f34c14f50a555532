"""Engines under a blueprint: verified first, then its settings and nobody else's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.blueprint_files import opened, read_policy
from mesh.cli.specs import EngineSpec, GgufSpec, ReferenceSpec, VllmSpec
from mesh.errors import BodyError, UsageError

if TYPE_CHECKING:
    from mesh.blueprint.verification import Blueprint
    from mesh.engine.gguf_described import GgufConfig
    from mesh.engine.protocol import ServingEngine
    from mesh.ledger import LedgerReader, ServedUnder

_NS_PER_S = 10**9


def governed(path: Path, roots: Sequence[Path], revoked: Path | None) -> Blueprint:
    """The blueprint in a file, checked in the order of the checks up to its body; lineage is for the ledger to say.
    Raises the BlueprintError of the first fault, UntrustedRoot, StaleRevocations, UsageError, OSError."""
    from mesh.blueprint.verification import verify

    policy = read_policy(roots, revoked, time.time_ns() // _NS_PER_S)
    with opened(path) as container:
        return verify(container, policy)


def spec_under(
    blueprint: Blueprint, *, gguf: Path | None = None, folder: Path | None = None, executable: str | None = None,
    start_s: int | None = None, silent_s: int | None = None, gpus: tuple[int | str, ...] | None = None,
) -> EngineSpec:  # fmt: skip
    """What to run: all but where it is, and how long it is waited for, is from the blueprint. Raises UsageError where
    that is for another kind of model."""
    from mesh.blueprint.settings import GgufSettings, VllmSettings

    settings = blueprint.body.settings
    if isinstance(settings, GgufSettings) and gguf is not None:
        return GgufSpec(
            gguf, name=settings.name, slots=settings.slots, context=settings.context_tokens, silent_s=silent_s,
            blueprint=blueprint,
        )  # fmt: skip
    if isinstance(settings, VllmSettings) and folder is not None:
        return VllmSpec(
            None, name=settings.name, slots=settings.slots, weights=folder, device=settings.device,
            flags=settings.flags, executable=executable or VllmSpec(None).executable, start_s=start_s,
            blueprint=blueprint, gpus=gpus,
        )  # fmt: skip
    raise UsageError(f"blueprint: it is for {settings.engine}, and the flags say where another kind of model is")


def check_governed(spec: GgufSpec | VllmSpec, environment: Mapping[str, str]) -> None:
    """Hold this machine, its environment, the installed kernels and the checkpoint's headers to the blueprint. Raises
    UnstatedLever, KernelError, BodyError, EngineUnsupported, ModelFileError, OSError."""
    from mesh.blueprint.settings import check_levers, check_loaded

    assert spec.blueprint is not None
    body = spec.blueprint.body
    check_loaded(dict(body.settings.environment))
    check_levers(body.settings, environment)
    if isinstance(spec, GgufSpec):
        from mesh.engine.gguf_blueprint import check_gguf
        from mesh.identity.model import read_model

        check_gguf(body, read_model(spec.path))
    else:
        from mesh.engine.vllm_blueprint import check_folder_body

        assert spec.weights is not None
        check_folder_body(body, spec.weights, program(spec.executable))


def program(name: str) -> Path:
    """Where a program is, links as they are. Raises UsageError."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"{name}: no such program")
    return Path(found)


def server_environment_under(spec: VllmSpec, environment: Mapping[str, str]) -> Mapping[str, str]:
    """What a server of our own gets: under a blueprint nothing that it does not state, but what moves no number."""
    from mesh.blueprint.settings import VllmSettings
    from mesh.engine.vllm_blueprint import environment_of

    assert spec.blueprint is not None
    settings = spec.blueprint.body.settings
    assert isinstance(settings, VllmSettings)
    return environment_of(settings, environment)


def config_under(spec: GgufSpec, cpu_watts_u: int | None, environment: Mapping[str, str]) -> GgufConfig:
    """The engine's configuration; it inherits `environment` and what the blueprint states."""
    from mesh.blueprint.settings import GgufSettings
    from mesh.engine.gguf_blueprint import config_of

    assert spec.blueprint is not None
    settings = spec.blueprint.body.settings
    assert isinstance(settings, GgufSettings)
    return config_of(
        settings, spec.path, blueprint_id=spec.blueprint.id, watts_u=cpu_watts_u, silent_s=spec.silent_s,
        environment={**environment, **dict(settings.environment)},
    )  # fmt: skip


async def held(engine: ServingEngine, blueprint: Blueprint) -> ServingEngine:
    """`engine`, once the bytes that it loaded are those that the blueprint pins; it is closed where they are not."""
    stated = blueprint.body.checkpoint.weights_digest
    loaded = engine.weights_digest
    if loaded is None or bytes(loaded) != stated:
        await engine.close()
        told = "none" if loaded is None else loaded.text
        raise BodyError(f"blueprint: the checkpoint's weights are b3:{stated.hex()}, those that were loaded {told}")
    return engine


def blueprints_of(specs: Sequence[EngineSpec]) -> list[Blueprint]:
    return [spec.blueprint for spec in specs if not isinstance(spec, ReferenceSpec) and spec.blueprint is not None]


def of_lineage(reader: LedgerReader, blueprint: Blueprint, *, allow: bool) -> ServedUnder:
    """The start under `blueprint` that is to be written down. Raises LineageError for one whose time has passed."""
    from mesh.blueprint.verification import check_lineage
    from mesh.ledger.blueprints import ServedUnder

    body = blueprint.body
    allowed = check_lineage(blueprint, reader.highest_blueprint(body.lineage), allow=allow)
    return ServedUnder(body.lineage, body.revision, blueprint.id, time.time_ns(), allowed)


def under_words(start: ServedUnder) -> str:
    told = f"under blueprint sha256:{start.blueprint_id.hex()}, revision {start.revision} of {start.lineage.hex()}"
    if start.allowed is None:
        return told
    why = {"lower-revision": "a higher revision was served before", "other-body": "another one was served as that"}
    return f"{told}: ALLOWED although {why[start.allowed]} (--allow-lower-revision); the ledger keeps it"
