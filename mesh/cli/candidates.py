"""A runtime candidate as something to run: what its engine is here, and everything it says that this machine must hold.

Fail closed: an argument, a variable or a limit that would not be kept as the candidate means it is refused by its name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mesh.cli.envelope import Envelope, memory_bytes
from mesh.cli.specs import CandidateSpec, EngineSpec, GgufSpec, VllmSpec
from mesh.cli.starting import gguf_config
from mesh.errors import CandidateError, EngineUnsupported, UsageError
from mesh.identity.files import FileIdentity

if TYPE_CHECKING:
    from mesh.runtime.candidate import Candidate
    from mesh.runtime.launching import Container, Serving

GIB: Final = 1 << 30
APPLICATION: Final = "org.servemesh.mesh"  # what a candidate calls this program, where its engine is the one inside
LLAMA: Final = ("llamacpp", "llama.cpp")
VLLM: Final = "vllm"
_MACHINES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_DEVICES: Final = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", "cpu": "cpu"}
# Set by whoever runs the candidate, or read by the loader and the interpreter before any engine is.
_PROTECTED: Final = ("LD_", "PYTHON", "MESH_", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
_PROTECTED_NAMES: Final = (
    "PATH", "HOME", "SHELL", "IFS", "BASH_ENV", "ENV", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "GLIBC_TUNABLES",
    "GCONV_PATH",
    # which cards it computes on, and so which are metered, is for whoever runs it to say
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR",
)  # fmt: skip


def spec_of_candidate(source: Path, models: Path | None, *, executable: str | None = None) -> EngineSpec:
    """`source` is a candidate's folder or its pack, `models` where its models lie. Raises CandidateError for what would
    not launch, EngineUnsupported for what cannot run here, ModelFileError, OSError."""
    from mesh.runtime.artifacts import GgufFile
    from mesh.runtime.catalogue import read_folder
    from mesh.runtime.faults import raise_faults
    from mesh.runtime.launching import Container, Serving, launch_faults
    from mesh.runtime.models import check_pins, located
    from mesh.runtime.packing import describe
    from mesh.runtime.unpacking import verify

    if source.is_dir():
        candidate = read_folder(source)
        raise_faults(launch_faults(candidate), f"{candidate.id}: would not launch")
        candidate, descriptor, _ = describe(source)
    else:
        packed = verify(source)
        candidate, descriptor = packed.candidate, packed.descriptor
        raise_faults(launch_faults(candidate), f"{candidate.id}: would not launch")
    container, serving = Container.model_validate(candidate.container), Serving.model_validate(candidate.serving)
    _check_target(candidate, container)
    _check_engine(candidate)
    paths = located(candidate, _models(models))
    first = candidate.artifacts[0]
    told = CandidateSpec(
        candidate.id, candidate.version, candidate.logical_model, descriptor.digest, _payload(candidate),
        first.sha256 if isinstance(first, GgufFile) else None,
        max_context_tokens=serving.max_context_tokens,
        max_connections=serving.max_connections, max_active_requests=serving.max_active_requests,
        envelope=Envelope(
            container.memory_bytes, container.min_available_gib * GIB, container.runtime_min_available_gib * GIB,
            container.startup_timeout_seconds,
        ),
        processors=container.processors,
        check=lambda progress: check_pins(candidate, paths, progress=progress),
    )  # fmt: skip
    if candidate.engine.id == VLLM:
        return _vllm(candidate, serving, container, paths, told, executable)
    if executable is not None:
        raise UsageError(f"--vllm-executable does not apply to {candidate.id}, whose engine is {candidate.engine.id}")
    return _llama(candidate, serving, paths, told)


def _models(models: Path | None) -> Path:
    if models is not None:
        return models
    home = os.environ.get("LETSINFER_HOME")
    if not home:
        raise UsageError("--models says where the candidate's models lie; LETSINFER_HOME is not set either")
    return Path(home) / "models"


def _check_engine(candidate: Candidate) -> None:
    if candidate.engine.id not in (VLLM, *LLAMA):
        what = f"{candidate.engine.id!r}: no such engine runs here, only llamacpp, vllm"
        raise _unsupported(candidate, "engine.id", what)


def _check_target(candidate: Candidate, container: Container) -> None:
    target = candidate.target
    here = f"{'macos' if platform.system() == 'Darwin' else platform.system().lower()}/{machine()}"
    if target.platform != here:
        raise _unsupported(candidate, "target.platform", f"{target.platform!r}, this machine is {here!r}")
    if target.parallel:
        nodes = f"needs {target.placement.node_count} nodes under a launcher"
        raise _unsupported(candidate, "target.placement.strategy", f"parallel: {nodes}, and here is one")
    total = memory_bytes("MemTotal")
    if total is not None and total < target.memory.minimum_total_gib * GIB:
        least = target.memory.minimum_total_gib
        raise _unsupported(candidate, "target.memory.minimum_total_gib", f"{least} GiB, here are {total // GIB} GiB")
    if (wanted := container.processors) is not None and not wanted <= (here_are := processors()):
        named = ", ".join(map(str, sorted(here_are))) or "none that an engine can be held to"
        raise _unsupported(candidate, "container.cpuset_cpus", f"{container.cpuset_cpus}, here are {named}")


def processors() -> frozenset[int]:
    """Those that this process may use, and so may give; none where the system keeps nobody to any."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def machine() -> str:
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def _payload(candidate: Candidate) -> str | None:
    """The payload as receipts name it: marked where nobody compared it with what runs."""
    payload = candidate.payload_id
    return f"told:{payload}" if payload is not None and candidate.engine.id == VLLM else payload


def _llama(candidate: Candidate, serving: Serving, paths: dict[str, Path], told: CandidateSpec) -> GgufSpec:
    from mesh.runtime.distribution import EmbeddedApplication

    engine, accelerator = candidate.engine, candidate.target.accelerator
    distribution = engine.distribution
    if not isinstance(distribution, EmbeddedApplication) or distribution.bundle_id != APPLICATION:
        what = f"{distribution.kind}: the llama.cpp that runs here is the one inside {APPLICATION}"
        raise _unsupported(candidate, "engine.distribution.kind", what)
    _check_version(candidate, distribution.minimum_version)
    payload = llama_payload()
    if distribution.payload_id != payload:
        raise _unsupported(candidate, "engine.distribution.payload_id", f"{distribution.payload_id}, here is {payload}")
    if accelerator.vendor != "cpu" or accelerator.architecture != machine():
        what = f"{accelerator.vendor}/{accelerator.architecture}: the llama.cpp inside computes on cpu/{machine()}"
        raise _unsupported(candidate, "target.accelerator", what)
    for name in engine.environment:
        raise _unsupported(candidate, f"engine.environment.{name}", "the llama.cpp inside reads no variables")
    given = _llama_flags(candidate)
    slots = given.get("parallel", serving.max_active_requests)
    if slots < serving.max_active_requests:
        what = f"{serving.max_active_requests}, and --parallel is {slots}"
        raise _unsupported(candidate, "serving.max_active_requests", what)
    if given.get("ctx-size", serving.max_context_tokens) < serving.max_context_tokens:
        what = f"{serving.max_context_tokens}, and --ctx-size is {given['ctx-size']}"
        raise _unsupported(candidate, "serving.max_context_tokens", what)
    spec = GgufSpec(
        paths[candidate.model.artifact], name=candidate.id, slots=serving.max_active_requests,
        context=serving.max_context_tokens, kv_type=_KV_TYPES.get(given.get("kv", -1)),
        flash_attention=bool(given.get("flash-attn", 1)), threads=given.get("threads"), ubatch=given.get("ubatch-size"),
        candidate=told,
    )  # fmt: skip
    with _bounded(candidate, "engine.arguments, serving"):
        gguf_config(spec, None)
    return spec


@contextmanager
def _bounded(candidate: Candidate, path: str) -> Iterator[None]:
    """What an engine's own configuration refuses was said by the candidate, and not by who runs it."""
    try:
        yield
    except UsageError as e:
        raise _unsupported(candidate, path, str(e)) from None


_KV_TYPES: Final[Mapping[int, str]] = dict(enumerate(("q8_0", "f16", "f32")))
_SHORT: Final = {
    "-c": "--ctx-size", "-np": "--parallel", "-t": "--threads", "-ub": "--ubatch-size", "-fa": "--flash-attn",
    "-ngl": "--n-gpu-layers", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v",
}  # fmt: skip
_NUMBERS: Final = ("--ctx-size", "--parallel", "--threads", "--ubatch-size", "--n-gpu-layers")


def _llama_flags(candidate: Candidate) -> dict[str, int]:
    """llama-server's spelling of what our engine can be told. Everything else is refused: a flag that were dropped
    would leave a candidate that is not the one that was measured."""
    given: dict[str, int] = {}
    kv: dict[str, int] = {}
    arguments = iter(enumerate(candidate.engine.arguments))
    for at, argument in arguments:
        flag = _SHORT.get(argument, argument)
        path = f"engine.arguments[{at}]"
        if flag == "--jinja":
            continue  # a model's own template is always the one that renders
        if flag not in (*_NUMBERS, "--flash-attn", "--cache-type-k", "--cache-type-v"):
            raise _unsupported(candidate, path, f"{argument[:80]!r}: nothing that the llama.cpp inside can be told")
        _, value = next(arguments, (at, ""))
        if flag in _NUMBERS:
            if not (value.isascii() and value.isdigit() and len(value) < 10):
                raise _unsupported(candidate, path, f"{argument}: expected a number, got {value[:80]!r}")
            given[flag.removeprefix("--")] = int(value)
        elif flag == "--flash-attn":
            if value not in ("on", "off"):
                raise _unsupported(candidate, path, f"{argument}: expected on or off, got {value[:80]!r}")
            given["flash-attn"] = int(value == "on")
        else:
            known = {name: number for number, name in _KV_TYPES.items()}
            if value not in known:
                raise _unsupported(candidate, path, f"{argument}: expected {', '.join(known)}, got {value[:80]!r}")
            kv[flag] = known[value]
    if given.get("n-gpu-layers"):
        raise _unsupported(candidate, "engine.arguments", "--n-gpu-layers: the llama.cpp inside has no GPU, expected 0")
    if kv and (len(kv) != 2 or len(set(kv.values())) != 1):
        raise _unsupported(
            candidate, "engine.arguments", "--cache-type-k and --cache-type-v: expected both, and the same"
        )
    return {**given, **({"kv": next(iter(kv.values()))} if kv else {})}


def llama_payload() -> str:
    """SHA-256 of the library that decodes: what a candidate names as its payload. Raises UsageError without it."""
    found = importlib.util.find_spec("xllamacpp")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("xllamacpp*.so")):
            return f"sha256:{_sha256(FileIdentity.of(path))}"
    raise UsageError("llama.cpp is not installed: pip install 'servemesh[gguf]'")


@functools.cache
def _sha256(file: FileIdentity) -> str:
    with file.path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_version(candidate: Candidate, least: str) -> None:
    import mesh

    def numbers(version: str) -> tuple[tuple[int, str], ...]:
        # by length and then by digits: a candidate may name a number that is longer than Python takes
        parts = (part.lstrip("0") for part in version.split("-")[0].split("+")[0].split(".")[:3])
        return tuple((len(part), part) for part in parts)

    if numbers(mesh.__version__) < numbers(least):
        what = f"{least[:80]}, this is {mesh.__version__}"
        raise _unsupported(candidate, "engine.distribution.minimum_version", what)


def _vllm(
    candidate: Candidate, serving: Serving, container: Container, paths: dict[str, Path], told: CandidateSpec,
    executable: str | None,
) -> VllmSpec:  # fmt: skip
    from mesh.engine.vllm_described import VllmConfig
    from mesh.engine.vllm_managed import server_command
    from mesh.runtime.models import resolved

    engine, accelerator = candidate.engine, candidate.target.accelerator
    if engine.model_format != "huggingface-snapshot":
        raise _unsupported(candidate, "engine.model_format", f"{engine.model_format}: vLLM loads a folder here")
    device = _DEVICES.get(accelerator.vendor)
    if device is None:
        known = ", ".join(_DEVICES)
        raise _unsupported(candidate, "target.accelerator.vendor", f"{accelerator.vendor!r}, expected one of {known}")
    if device == "cuda" and (cards := nvidia_cards()) < accelerator.count:
        raise _unsupported(candidate, "target.accelerator.count", f"{accelerator.count}, here are {cards}")
    for name in engine.environment:
        if name.startswith(_PROTECTED) or name in _PROTECTED_NAMES:
            raise CandidateError(f"{candidate.id}: engine.environment.{name}: set by whoever runs it")
    flags = resolved(engine.arguments, paths)
    try:
        server_command("vllm", "model", port=1, name="model", flags=flags)
    except UsageError as e:
        raise CandidateError(f"{candidate.id}: engine.arguments: {e}") from None
    with _bounded(candidate, "serving, container"):
        VllmConfig("http://localhost", slots=serving.max_active_requests, start_s=container.startup_timeout_seconds)
    return VllmSpec(
        None, name=candidate.id, slots=serving.max_active_requests, weights=paths[candidate.model.artifact],
        device=device, executable=executable or "vllm", flags=tuple(flags), start_s=container.startup_timeout_seconds,
        candidate=told, environment=tuple(engine.environment.items()),
    )  # fmt: skip


def nvidia_cards() -> int:
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def _unsupported(candidate: Candidate, path: str, what: str) -> EngineUnsupported:
    return EngineUnsupported(f"{candidate.id}: cannot run here: {path}: {what}")
