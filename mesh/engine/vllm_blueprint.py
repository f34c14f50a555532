"""A vLLM server of our own and its blueprint, both ways.

The plan is that of vLLM 0.32 on an x86 processor in eager mode, told at the level at which it chooses: operators of its
own module and of torch's. With compilation, kernels are made while the server starts, and nothing can be said of them
before; so a server that compiles has no blueprint.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mesh.blueprint.body import SCHEMA, Arm, Body, Checkpoint, Evidence, Group, Hardware, Kernel, Module, planned
from mesh.blueprint.circuit import Circuit, Format
from mesh.blueprint.modules import check_module, measured
from mesh.blueprint.roles import placed_hf
from mesh.blueprint.settings import VllmSettings
from mesh.blueprint.wiring import Numerics, Tensor, Wiring
from mesh.engine.gguf_blueprint import check_hardware, cpu_features
from mesh.engine.hf_files import read_json
from mesh.engine.hf_model import HfModel, read_hf_model
from mesh.engine.vllm_described import told_dtype
from mesh.engine.vllm_identity import WeightsFolder
from mesh.errors import BodyError, EngineUnsupported, KernelError, ModelFileError, UsageError
from mesh.identity.files import open_regular
from mesh.identity.folder import CONFIG, folder_files
from mesh.identity.safetensors import tensor_shapes
from mesh.identity.weights import digest_files

_EAGER: Final = "--enforce-eager"
_VERSION: Final = "0.32"
_ISA: Final = "x86_64-avx2"
_BITS: Final = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8,
                "F8_E4M3": 8, "F8_E5M2": 8}  # fmt: skip
_DTYPES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
FORMATS: Final = {name: Format(name, 1, bits) for name, bits in _BITS.items()}
_TORCH: Final = "torch/lib/libtorch_cpu.so"
# The module and the operator that compute a node of a kind; `own` is vLLM's.
_OPERATORS: Final = {
    "embedding": (_TORCH, "embedding", "gather"), "norm": (_TORCH, "rsqrt", "norm"),
    "activation": (_TORCH, "silu", "activation"), "add": (_TORCH, "add", "elementwise"),
    "quantize": (_TORCH, "to", "quantize"), "linear": ("own", "onednn_mm", "matmul"),
    "head": ("own", "onednn_mm", "matmul"), "rope": ("own", "rotary_embedding", "rope"),
    "cache": ("own", "cpu_attn_reshape_and_cache", "cache"),
    "attention": ("own", "cpu_attention_with_kv_cache", "attention"),
}  # fmt: skip
# Flags of the server that leave the circuit and the plan as they are, and whether a value follows. Of any other it is
# not known what it does to them: it may quantize, speculate with another model, or read a file that nobody pins.
_FLAGS: Final = {
    "--dtype": True, "--max-model-len": True, "--max-num-seqs": True, "--max-num-batched-tokens": True,
    "--block-size": True, "--seed": True, "--max-logprobs": True, "--gpu-memory-utilization": True,
    "--kv-cache-memory-bytes": True, "--scheduling-policy": True, "--uvicorn-log-level": True,
    _EAGER: False, "--enable-prefix-caching": False, "--no-enable-prefix-caching": False,
    "--enable-chunked-prefill": False, "--no-enable-chunked-prefill": False, "--async-scheduling": False,
    "--no-async-scheduling": False, "--disable-log-stats": False, "--disable-uvicorn-access-log": False,
}  # fmt: skip
# What a process needs that moves no number; nothing else is inherited by a server under a blueprint.
_NEUTRAL: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "TERM",
    "SHELL",
    "XDG_CACHE_HOME",
)


def packages_of(executable: Path) -> Path:
    """The folder of packages of the environment that a server's program is in. Raises EngineUnsupported."""
    for folder in sorted((executable.parent.parent / "lib").glob("python3.*/site-packages")):
        if (folder / "vllm").is_dir():
            return folder
    raise EngineUnsupported(f"vllm: no package beside {executable}: its kernels cannot be pinned")


def version_of(packages: Path) -> str:
    for folder in sorted(packages.glob("vllm-*.dist-info")):
        return folder.name.removeprefix("vllm-").removesuffix(".dist-info")
    raise EngineUnsupported("vllm: its package says no version")


def environment_of(settings: VllmSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a server under a blueprint gets, whole."""
    neutral = {name: inherited[name] for name in _NEUTRAL if name in inherited}
    return {**neutral, **dict(settings.environment)}


def check_flags(flags: Sequence[str]) -> None:
    """Raises EngineUnsupported naming the first flag of which it is not known what the plan is under it."""
    words = iter(flags)
    for word in words:
        name, told, _ = word.partition("=")
        if name not in _FLAGS or (told and not _FLAGS[name]):
            raise EngineUnsupported(
                f"blueprint: what {word[:80]!r} does to vLLM's plan is not known; known are {', '.join(sorted(_FLAGS))}"
            )
        if _FLAGS[name] and not told and (value := next(words, "--")).startswith("--"):
            raise EngineUnsupported(f"blueprint: {name}: a value is missing before {value[:80]!r}")


def folder_body(
    folder: Path, *, executable: Path, name: str, served: str, slots: int, device: str | None, flags: tuple[str, ...],
    environment: Mapping[str, str], lineage: bytes, revision: int, evidence: Iterable[Evidence] = (),
) -> Body:  # fmt: skip
    """What would run if a server of our own served `folder`. Reads every byte of it and of the modules. Raises
    ModelFileError, BodyError, EngineUnsupported, KernelError, UsageError, OSError."""
    if device != "cpu":
        raise EngineUnsupported("blueprint: the plan of vLLM is known for --device cpu alone")
    if _EAGER not in flags:
        raise UsageError(f"blueprint: without {_EAGER} vLLM makes its kernels while it starts: nothing can be pinned")
    check_flags(flags)
    packages = packages_of(executable)
    version = version_of(packages)
    if not version.startswith(f"{_VERSION}."):
        raise EngineUnsupported(f"blueprint: the plan is that of vLLM {_VERSION}, this is {version}")
    settings = VllmSettings(served, version, slots, device, flags, None, tuple(sorted(environment.items())))
    circuit = circuit_of(folder, settings)
    found = {path: measured(packages / path, name=path, isa=_ISA, origin=f"vllm {version}") for path in _paths()}
    modules = tuple(sorted(found.values(), key=lambda module: module.digest))
    kernels, plan = plan_of(circuit, settings, modules)
    _check_operators(packages, modules, kernels)
    return Body(
        schema=SCHEMA, name=name, lineage=lineage, revision=revision, checkpoint=_checkpoint(folder),
        hardware=Hardware(_ISA, device, _features()), circuit=circuit, plan=plan, modules=modules, kernels=kernels,
        settings=settings, evidence=tuple(sorted(evidence, key=lambda one: one.record)),
    )  # fmt: skip


def check_folder_body(body: Body, folder: Path, executable: Path) -> None:
    """Hold this machine, the installed modules and the folder's headers to `body`. Raises KernelError, BodyError,
    EngineUnsupported, ModelFileError, OSError."""
    settings = body.settings
    if not isinstance(settings, VllmSettings) or body.checkpoint.format != "safetensors":
        raise BodyError(f"blueprint: it is for {settings.engine}, not for a folder that vLLM serves")
    check_flags(settings.flags)
    check_hardware(body.hardware)
    packages = packages_of(executable)
    if version_of(packages) != settings.version:
        raise KernelError(f"blueprint: for vllm {settings.version}, {version_of(packages)} is installed")
    for module in body.modules:
        check_module(packages / module.name, module)
    circuit = circuit_of(folder, settings)
    if circuit != body.circuit:
        raise BodyError("blueprint: the checkpoint and the settings make another circuit than it states")
    _, plan = plan_of(circuit, settings, body.modules)
    if [arm.digest for arm in plan] != [arm.digest for arm in body.plan]:
        raise BodyError("blueprint: the checkpoint and the settings make another plan than it states")


def circuit_of(folder: Path, settings: VllmSettings) -> Circuit:
    """Raises BodyError naming the tensor whose place is unknown, ModelFileError, OSError."""
    model, config = read_hf_model(folder), read_json(folder, CONFIG)
    assert config is not None
    dtype = told_dtype(settings.flags) or model.dtype
    if dtype not in _DTYPES:
        raise BodyError("circuit: the type that is computed in is not known: give --dtype among the server's flags")
    if model.quantization is not None:
        raise BodyError(f"circuit: weights quantized by {model.quantization}: how they are computed with is not known")
    shapes = tensor_shapes(folder_files(folder))
    found = [Tensor(name, kind, shape) for name, (kind, shape) in shapes.items()]
    unknown = sorted({tensor.format for tensor in found} - FORMATS.keys())
    if unknown:
        raise ModelFileError(f"{folder.name}: tensors of type {unknown[0][:80]!r}, which is not known")
    rope = any(name in config.values for name in ("rope_theta", "rope_parameters", "rope_scaling"))
    wiring = Wiring(found, Numerics(FORMATS, _DTYPES[dtype], _DTYPES[dtype]), rope=rope)
    post_norms = any("pre_feedforward_layernorm" in tensor.name for tensor in found)
    architecture = model.architecture or "unknown"
    return wiring.circuit([
        placed_hf(number, weight, architecture, post_norms=post_norms) for number, weight in enumerate(wiring.weights)
    ])  # fmt: skip


def plan_of(
    circuit: Circuit, settings: VllmSettings, modules: tuple[Module, ...]
) -> tuple[tuple[Kernel, ...], tuple[Arm, ...]]:
    """Raises EngineUnsupported for a kind of node whose operator is not known, KernelError for a module that this
    processor would run and that is not there."""
    place = {module.name: number for number, module in enumerate(modules)}
    needed: dict[tuple[int, str], Kernel] = {}
    choices = []
    for number, node in enumerate(circuit.nodes):
        if node.kind in ("input", "output"):
            continue
        if node.kind not in _OPERATORS:
            raise EngineUnsupported(f"circuit: {node.name}: which operator of vLLM computes {node.kind} is not known")
        module, function, family = _OPERATORS[node.kind]
        name = _own_module() if module == "own" else module
        if name not in place:
            raise KernelError(f"kernel module {name!r}: this processor runs it, and it is not pinned")
        key = (place[name], function)
        needed[key] = Kernel(*key, family=family, numerics=circuit.formats[node.format].name)
        choices.append((key, number))
    kernels = tuple(needed[key] for key in sorted(needed))
    order = {key: number for number, key in enumerate(sorted(needed))}
    groups = tuple(Group(order[key], (number,)) for key, number in choices)
    arms = [Arm("prefill", 1, settings.slots, groups, b""), Arm("decode", 1, settings.slots, groups, b"")]
    return kernels, tuple(planned(arm, modules, kernels) for arm in arms)


def _own_module() -> str:
    features = cpu_features()
    if "avx512f" not in features:
        return "vllm/_C_AVX2.abi3.so"
    return "vllm/_C.abi3.so" if "avx512_bf16" in features else "vllm/_C_AVX512.abi3.so"


def _paths() -> tuple[str, str]:
    return _own_module(), _TORCH


def _features() -> tuple[str, ...]:
    return tuple(sorted({"avx2", "fma"} | (cpu_features() & {"avx512f", "avx512_bf16"})))


def _check_operators(packages: Path, modules: tuple[Module, ...], kernels: tuple[Kernel, ...]) -> None:
    for number, module in enumerate(modules):
        with open_regular(packages / module.name) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for kernel in kernels:
                if kernel.module == number and data.find(kernel.function.encode()) < 0:
                    raise KernelError(f"kernel module {module.name!r}: no operator {kernel.function}")


def _checkpoint(folder: Path) -> Checkpoint:
    read: WeightsFolder = WeightsFolder.of(folder)
    model: HfModel = read.model
    if model.architecture is None or model.layer_count is None:
        raise ModelFileError(f"{folder.name}: config.json does not say its architecture and its number of layers")
    return Checkpoint(
        format="safetensors", weights_digest=bytes(digest_files(folder_files(folder)).digest),
        content_digest=bytes.fromhex(read.content), architecture=model.architecture,
        architecture_digest=bytes.fromhex(read.config), layers=model.layer_count, precision=model.dtype or "none",
    )  # fmt: skip
