"""A GGUF engine and its blueprint, both ways: what is stated of a file, a build and settings, and whether what would be
loaded is what was stated."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mesh.blueprint.body import SCHEMA, Body, Checkpoint, Evidence, Hardware, Module
from mesh.blueprint.circuit import Circuit
from mesh.blueprint.modules import check_module, measured, missing_functions
from mesh.blueprint.roles import placed_gguf
from mesh.blueprint.settings import GgufSettings
from mesh.blueprint.wiring import Tensor, Wiring
from mesh.engine.gguf_abi import WHEEL_VERSION
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.gguf_plan import FEATURES, ISA, functions_of, numerics_of, plan_of
from mesh.errors import BodyError, EngineUnsupported, KernelError
from mesh.identity.derived import content_digest, gguf_artifact
from mesh.identity.model import GgufModel
from mesh.identity.weights import digest_files
from mesh.schema.outcome import Fidelity

_MODULE: Final = "xllamacpp.abi3.so"
_MACHINES: Final = ("x86_64", "amd64")
_CPUINFO: Final = Path("/proc/cpuinfo")


def compiled_module() -> Path:
    """The shared object of the installed wheel, found without loading it. Raises EngineUnsupported."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise EngineUnsupported("gguf engine: xllamacpp is not installed: install the extra `gguf`")
    version = importlib.metadata.version("xllamacpp")
    if version != WHEEL_VERSION:
        raise EngineUnsupported(f"xllamacpp {version} is installed, expected {WHEEL_VERSION}")
    return Path(spec.origin).with_name(_MODULE)


def settings_of(config: GgufConfig, model: GgufModel, environment: Mapping[str, str]) -> GgufSettings:
    """All of `config`, with what it leaves to defaults spelled out. Raises ModelFileError."""
    return GgufSettings(
        name=config.recipe_id, slots=config.slots, context_tokens=config.context_of(model), kv_type=config.kv_type,
        flash_attention=config.flash_attention, n_batch=config.n_batch, n_ubatch=config.n_ubatch,
        threads=config.threads, batch_threads=config.batch_threads, repack=config.use_extra_bufts,
        together_always=config.together_always, chat_template=config.chat_template or None,
        tokenizer_pre=config.tokenizer_pre, eos_id=config.eos_id,
        fidelity=None if config.fidelity is None else int(config.fidelity),
        environment=tuple(sorted(environment.items())),
    )  # fmt: skip


def config_of(
    settings: GgufSettings,
    path: Path,
    *,
    blueprint_id: bytes,
    environment: Mapping[str, str],
    watts_u: int | None = None,
    silent_s: float | None = None,
) -> GgufConfig:
    """The configuration that these settings are, for the file at `path`; the child gets `environment` alone, and may be
    silent as long as any, or for `silent_s` seconds."""
    made = GgufConfig(
        path, recipe_id=settings.name, slots=settings.slots, context_tokens=settings.context_tokens,
        kv_type=settings.kv_type, flash_attention=settings.flash_attention, n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch, threads=settings.threads, batch_threads=settings.batch_threads,
        use_extra_bufts=settings.repack, together_always=settings.together_always,
        chat_template=settings.chat_template, tokenizer_pre=settings.tokenizer_pre, eos_id=settings.eos_id,
        fidelity=None if settings.fidelity is None else Fidelity(settings.fidelity), watts_u=watts_u,
        blueprint_id=blueprint_id, environment=environment,
    )  # fmt: skip
    return made if silent_s is None else replace(made, silent_s=silent_s)


def circuit_of(model: GgufModel, settings: GgufSettings) -> Circuit:
    """Wired from the tensors and the architecture alone. Raises BodyError naming the tensor whose place is unknown."""
    metadata, architecture = model.header.metadata, model.header.architecture or ""
    tensors = [Tensor(tensor.name, tensor.type.name, tensor.dims) for tensor in model.tensors]
    rope = any(key.startswith(f"{architecture}.rope.") for key in metadata)
    wiring = Wiring(tensors, numerics_of(metadata, architecture, settings), rope=rope)
    return wiring.circuit([placed_gguf(n, weight, architecture) for n, weight in enumerate(wiring.weights)])


def body_of(
    model: GgufModel, config: GgufConfig, *, name: str, lineage: bytes, revision: int,
    environment: Mapping[str, str], evidence: Iterable[Evidence] = (),
) -> Body:  # fmt: skip
    """What would run if `config` were served here. Reads every byte of the model and of the compiled module. Raises
    ModelFileError, BodyError, EngineUnsupported, KernelError, OSError."""
    if platform.machine().lower() not in _MACHINES:
        raise EngineUnsupported(f"blueprint: the plan of llama.cpp is known for {ISA}, not for {platform.machine()}")
    path = compiled_module()
    modules = (measured(path, name=_MODULE, isa=ISA, origin=f"xllamacpp {WHEEL_VERSION}"),)
    settings = settings_of(config, model, environment)
    circuit = circuit_of(model, settings)
    kernels, plan = plan_of(circuit, settings, modules)
    missing = missing_functions(path, functions_of(kernels))
    if missing:
        raise KernelError(f"kernel module {_MODULE!r}: no function {', '.join(missing)}")
    return Body(
        schema=SCHEMA, name=name, lineage=lineage, revision=revision, checkpoint=_checkpoint(model),
        hardware=Hardware(ISA, "cpu", FEATURES), circuit=circuit, plan=plan, modules=modules, kernels=kernels,
        settings=settings, evidence=tuple(sorted(evidence, key=lambda one: one.record)),
    )  # fmt: skip


def _checkpoint(model: GgufModel) -> Checkpoint:
    files = model.logical_files
    content = content_digest(files)
    artifact = gguf_artifact(model, content)
    return Checkpoint(
        format="gguf", weights_digest=bytes(digest_files(files).digest), content_digest=bytes.fromhex(content),
        architecture=artifact.architecture, architecture_digest=bytes.fromhex(artifact.architecture_digest),
        layers=artifact.layer_count, precision=model.precision or "none",
    )  # fmt: skip


def check_gguf(body: Body, model: GgufModel) -> None:
    """Hold this machine, the installed module and the file's headers to `body`; the file's bytes are held to it when
    they are digested, at load. Raises KernelError, BodyError, EngineUnsupported, OSError."""
    settings = body.settings
    if not isinstance(settings, GgufSettings) or body.checkpoint.format != "gguf":
        raise BodyError(f"blueprint: it is for {settings.engine}, not for a GGUF model")
    check_hardware(body.hardware)
    path = compiled_module()
    for module in body.modules:
        check_module(path, module)
    check_plan(body, circuit_of(model, settings), body.modules)


def check_plan(body: Body, circuit: Circuit, modules: tuple[Module, ...]) -> None:
    """Raises BodyError where the circuit and the plan that follow from the checkpoint and the settings are others."""
    assert isinstance(body.settings, GgufSettings)
    if circuit != body.circuit:
        raise BodyError("blueprint: the checkpoint and the settings make another circuit than it states")
    _, plan = plan_of(circuit, body.settings, modules)
    here = {(arm.mode, arm.rows_from, arm.rows_to): arm.digest for arm in plan}
    stated = {(arm.mode, arm.rows_from, arm.rows_to): arm.digest for arm in body.plan}
    for mode, first, last in sorted(here.keys() | stated.keys()):
        got, expected = here.get((mode, first, last)), stated.get((mode, first, last))
        if got != expected:
            told = ["none" if one is None else one.hex() for one in (got, expected)]
            raise BodyError(f"blueprint: plan of {mode}, rows {first} to {last}: {told[0]} here, it states {told[1]}")


def check_hardware(hardware: Hardware) -> None:
    """Raises EngineUnsupported where this machine is not what `hardware` states."""
    machine = platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    if hardware.isa.partition("-")[0] != machine:
        raise EngineUnsupported(f"blueprint: for {hardware.isa}, this machine is {machine}")
    missing = sorted(set(hardware.features) - cpu_features())
    if missing:
        raise EngineUnsupported(f"blueprint: this processor lacks {', '.join(missing)}")


def cpu_features() -> frozenset[str]:
    """What Linux says that the processor has. Raises OSError."""
    for line in _CPUINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(rest.split())
    return frozenset()
