"""What to run, in plain values: made from flags or from a `mesh.toml`, and made into an engine by `starting`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.envelope import Envelope

if TYPE_CHECKING:
    from mesh.blueprint.verification import Blueprint


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """The runtime candidate that an engine is started for. Digests are 64 hex digits, `payload` is what receipts
    say of it. `check` holds its models to their pins, which reads them; it is called with what follows the bytes."""

    id: str
    version: str
    logical_model: str
    runtime_digest: str
    payload: str | None
    content_sha256: str | None  # of the one file that it serves; None where its pin is no digest of bytes
    max_context_tokens: int
    max_connections: int  # serves that run and those that may wait
    max_active_requests: int
    envelope: Envelope
    processors: frozenset[int] | None  # that it may use; None: all
    check: Callable[[Callable[[int, int], None] | None], None] = field(compare=False, repr=False)

    @property
    def queue(self) -> int:
        """Serves that may wait."""
        return self.max_connections - self.max_active_requests

    @property
    def settings(self) -> dict[str, Any]:
        """What the settings document of its engine holds of it."""
        told = {"id": self.id, "version": self.version, "runtime": f"sha256:{self.runtime_digest}"}
        return told if self.payload is None else {**told, "payload": self.payload}


@dataclass(frozen=True, slots=True)
class ReferenceSpec:
    """The deterministic reference engine. None is its own default."""

    name: str | None = None
    slots: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class GgufSpec:
    """A GGUF model. None is the engine's default. Under a `blueprint` it says all but where the model is."""

    path: Path
    name: str | None = None
    slots: int | None = None
    context: int | None = None
    kv_type: str | None = None
    flash_attention: bool = True
    threads: int | None = None
    check_threads: int | None = None
    ubatch: int | None = None
    chat_template: Path | None = None
    tokenizer_pre: str | None = None
    eos_id: int | None = None
    silent_s: int | None = None
    blueprint: Blueprint | None = None
    candidate: CandidateSpec | None = None


@dataclass(frozen=True, slots=True)
class VllmSpec:
    """A vLLM server: one that runs at `url`, or, where that is None, one of our own, started with `executable` on the
    folder `weights` with `flags`, which has `start_s` seconds until it answers. `key_file` holds the bearer token that
    a server of others wants."""

    url: str | None
    name: str | None = None
    model: str | None = None
    slots: int | None = None
    weights: Path | None = None
    tokenizer: Path | None = None
    chat_template: Path | None = None
    dtype: str | None = None
    device: str | None = None
    key_file: Path | None = None
    executable: str = "vllm"
    flags: tuple[str, ...] = field(default=())
    start_s: int | None = None
    margins: bool = False
    blueprint: Blueprint | None = None
    gpus: tuple[int | str, ...] | None = None  # this machine's cards that it computes on; None where nobody said
    route: bool = False  # it computes over several hosts, each of which has to report what
    candidate: CandidateSpec | None = None
    environment: tuple[tuple[str, str], ...] = ()  # for a server of our own, beside what it inherits


# The words for what only the operator knows of a vLLM server; `VllmConfig` refuses others.
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "rocm", "xpu", "tpu", "hpu")


@dataclass(frozen=True, slots=True)
class MeterSpec:
    """What is to be metered. `rapl` is the powercap tree; `nvml` is `all` or cards by number or UUID; None is not.
    `cpu_fitted` is the band of fitted watts and the rule of the fit."""

    cpu_watts_u: int | None = None
    rapl: Path | None = None
    rapl_boundary: str = "package+dram"
    nvml: str | tuple[int | str, ...] | None = None
    cpu_fitted: tuple[int, str] | None = None

    @property
    def empty(self) -> bool:
        return not self.names

    @property
    def names(self) -> list[str]:
        """The meters that are asked for."""
        asked = {"rapl": self.rapl, "nvml": self.nvml, "cpu-time": self.cpu_watts_u}
        return [name for name, value in asked.items() if value is not None]


NO_METER = MeterSpec()
EngineSpec = ReferenceSpec | GgufSpec | VllmSpec
