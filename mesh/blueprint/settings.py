"""Serve settings, typed and complete: with these an engine has nothing left to be told, and nothing else may tell it.

A variable of the environment that an engine reads is a lever like any other. The levers are known by the beginnings of
their names; those that are stated are set to what is stated, and any other that is set is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mesh.blueprint import postcard as p
from mesh.blueprint.postcard_scalars import BOOL, U8, U32, Text, Words
from mesh.errors import BodyError, KernelError, UnstatedLever

KV_TYPES: Final = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
DEVICES: Final = ("cpu", "cuda", "rocm", "xpu", "tpu", "hpu")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What decides which code is loaded, and how many threads compute: read by the loader and by libraries of any engine.
_OF_LIBRARIES: Final = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "MALLOC_",
    "GLIBC_TUNABLES", "PYTHON", "CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "NCCL_", "HIP_", "ROCR_", "ROCM_", "HSA_",
    "ONEAPI_", "SYCL_", "ZE_",
)  # fmt: skip
_LEVERS: Final = {
    "gguf": (*_OF_LIBRARIES, "GGML_", "LLAMA_"),
    "vllm": (
        *_OF_LIBRARIES, "VLLM_", "TORCH", "PYTORCH_", "ATEN_", "TRITON_", "INDUCTOR_", "FLASHINFER_",
        "FLASH_ATTENTION_", "XLA_", "PJRT_", "TPU_", "RAY_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "SAFETENSORS_",
        "TOKENIZERS_", "OUTLINES_", "XGRAMMAR_", "LMCACHE_", "DNNL_", "ONEDNN_", "CPU_", "GLOO_", "UCX_", "NVTE_",
        "DEEP_GEMM_", "DG_",
    ),
}  # fmt: skip
# Say how Python itself runs a process of ours and move no number.
_NO_LEVERS: Final = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8",
     "PYTHONSAFEPATH", "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER"}
)  # fmt: skip
# Say where code is loaded from that is of no module which a blueprint pins.
_LOADING: Final = ("LD_", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "GGML_BACKEND_")


@dataclass(frozen=True, slots=True)
class GgufSettings:
    """All that the engine of GGUF models is told, but where the file is."""

    name: str
    slots: int
    context_tokens: int
    kv_type: str
    flash_attention: bool
    n_batch: int
    n_ubatch: int
    threads: int
    batch_threads: int
    repack: bool
    together_always: bool
    chat_template: str | None
    tokenizer_pre: str | None
    eos_id: int | None
    fidelity: int | None
    environment: tuple[tuple[str, str], ...]

    engine = "gguf"

    def __post_init__(self) -> None:
        _check_environment(self.environment)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """All that a vLLM server of our own is told, but where the folder and the program are. `flags` follow those that
    the mesh sets itself."""

    name: str
    version: str
    slots: int
    device: str
    flags: tuple[str, ...]
    chat_template: str | None
    environment: tuple[tuple[str, str], ...]

    engine = "vllm"

    def __post_init__(self) -> None:
        _check_environment(self.environment)


Settings = GgufSettings | VllmSettings

_NAME = Text(256)
_LONG = Text(1 << 20)
_ENVIRONMENT = p.Seq(p.Tuple(Text(256), Text(4096, empty=True)), 256)
SETTINGS: Final = p.Enum(
    p.Struct(
        GgufSettings, name=_NAME, slots=U32, context_tokens=U32, kv_type=Words(*KV_TYPES), flash_attention=BOOL,
        n_batch=U32, n_ubatch=U32, threads=U32, batch_threads=U32, repack=BOOL, together_always=BOOL,
        chat_template=p.Option(_LONG), tokenizer_pre=p.Option(Text(127)), eos_id=p.Option(U32),
        fidelity=p.Option(U8), environment=_ENVIRONMENT,
    ),
    p.Struct(
        VllmSettings, name=_NAME, version=_NAME, slots=U32, device=Words(*DEVICES), flags=p.Seq(Text(4096), 256),
        chat_template=p.Option(_LONG), environment=_ENVIRONMENT,
    ),
)  # fmt: skip


def levers_in(engine: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that an engine of this kind would read, or a library of it."""
    begins = _LEVERS[engine]
    return {
        name: value for name, value in environment.items() if name.startswith(begins) and name not in _NO_LEVERS
    }  # fmt: skip


def check_levers(settings: Settings, environment: Mapping[str, str]) -> None:
    """Raises UnstatedLever naming each variable that would be read and that is not stated, or not so."""
    stated = dict(settings.environment)
    faults = []
    for name, value in sorted(levers_in(settings.engine, environment).items()):
        if name not in stated:
            faults.append(f"environment variable {name} is set, which the blueprint does not state")
        elif stated[name] != value:
            faults.append(f"environment variable {name} is {value[:80]!r}, the blueprint states {stated[name][:80]!r}")
    if faults:
        raise UnstatedLever("; ".join(faults))


def check_loaded(environment: Mapping[str, str]) -> None:
    """Raises KernelError for a variable that, stated or not, would load code that no module pins."""
    for name in sorted(environment):
        if name.startswith(_LOADING):
            raise KernelError(f"environment variable {name[:80]}: it loads code of which no kernel module is pinned")


def _check_environment(pairs: tuple[tuple[str, str], ...]) -> None:
    names = [name for name, _ in pairs]
    if names != sorted(set(names)):
        raise BodyError("settings: the variables of the environment do not ascend")
    for name, value in pairs:
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise BodyError(f"settings: {name[:80]!r} is no variable of an environment")
