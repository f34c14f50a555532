"""`mesh.toml`: what an operator writes down. It only describes; the command line makes engines and meters of it.

[gateway]            host, port, default_max_tokens, queue, drain_s and other bounds
[state]              dir: the signing key and the ledger
[meter]              rapl: true, or the powercap tree; rapl_boundary; nvml: "all", or cards by number or UUID;
                     cpu_watts: watts of one busy core, for a modelled figure, or cpu_calibration, the file of
                     `mesh meter calibrate`; all left out, there is none
[disclosures]        keep, days: whether prompts and answers are kept so that they can be disclosed later
[auth]               keys: BLAKE3 digests ("b3:...") of the bearer tokens that are let in
[launch]             state: the folder where `mesh launch` keeps its runs, to be shown; nothing is written there
[cors]               origins: web pages of others that may use the server from a browser
[grants]             issuers: whose grants are let in; revoked: a file of blocks that are not; leeway_s
[blueprints]         roots: files of the keys that blueprints are trusted by; revoked: the root's list of revocations
[[backend]]          kind = "gguf" (path, name, slots, ...), "vllm" (url, weights, gpus, ...), "vllm-managed" (weights,
                     flags, start_s, ...), "runtime" (path, models) or "reference"; clients choose one by its name, or
                     any of those that share one of its aliases; queue; with a blueprint, and then no other key of the
                     engine
"""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from mesh.errors import SchemaError, UsageError
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_TOKENS
from mesh.schema.request import MILLION
from mesh.schema.value import Name, fits

_MAX_CONFIG_BYTES = 1 << 20
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_DAY_NS = 24 * 3600 * 10**9

Seconds = Annotated[int, Field(ge=1, le=86_400)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class GatewayConfig(_Table):
    """Where the gateway listens and its bounds. `_s` are seconds, `_bytes` bytes."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    default_max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    max_body_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = 4 << 20
    queue: Annotated[int, Field(ge=0, le=100_000)] = 64  # serves that may wait for a slot, per backend
    queue_wait_s: Seconds = 60
    deadline_s: Seconds = 600  # for a whole request, from its head to the end of its answer; a client may ask for less
    attempts: Annotated[int, Field(ge=1, le=64)] = 2  # backends that may try one request before its first token
    max_prompt_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None  # left out, the model's context
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    body_memory_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = 256 << 20  # of all requests together
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    min_free_bytes: Annotated[int, Field(ge=0, le=1 << 60)] = 32 << 20  # with less for the ledger it is not ready
    idle_timeout_s: Seconds = 60  # a connection whose next request's head is not there by then is closed
    metrics: bool = True  # GET /metrics, for whoever may use the server
    page: bool = True  # the web page at /; what it shows is asked for with a key, where there are keys
    body_timeout_s: Seconds = 30
    write_timeout_s: Seconds = 30  # a client that takes nothing for this long is gone
    keep_alive_s: Seconds = 15  # a stream with nothing to say sends a comment this often
    drain_s: Annotated[int, Field(ge=0, le=86_400)] = 20  # running serves may take this long to end at shutdown
    repeat_answers: Annotated[int, Field(ge=0, le=1_000_000)] = 256  # answers held for repeated idempotency keys
    repeat_bytes: Annotated[int, Field(ge=0, le=1 << 33)] = 32 << 20
    repeat_s: Seconds = 600


class StateConfig(_Table):
    dir: Annotated[str, Field(min_length=1)] = "state"


def _decimal(value: Any) -> Any:
    return Decimal(value) if type(value) is int else value


# A card by its number along the bus, or by its UUID or the beginning of one.
Gpu = Annotated[int, Field(ge=0, le=1023)] | Annotated[str, Field(min_length=1, max_length=80)]


class MeterConfig(_Table):
    rapl: bool | Annotated[str, Field(min_length=1)] = False
    rapl_boundary: Literal["package+dram", "package", "psys"] = "package+dram"
    nvml: Literal["all"] | Annotated[list[Gpu], Field(min_length=1, max_length=64)] | None = None
    cpu_watts: Annotated[Decimal, BeforeValidator(_decimal), Field(gt=0, le=1_000_000)] | None = None
    cpu_calibration: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("cpu_watts")
    @classmethod
    def _six_decimals(cls, watts: Decimal | None) -> Decimal | None:
        if watts is not None and watts * MILLION != int(watts * MILLION):
            raise ValueError("more than six decimals")
        return watts

    @model_validator(mode="after")
    def _one_of_cpu(self) -> Self:
        if self.cpu_watts is not None and self.cpu_calibration is not None:
            raise ValueError("cpu_watts and cpu_calibration: one of them says what a core draws")
        return self

    @property
    def cpu_watts_u(self) -> int | None:
        """Microwatts."""
        return None if self.cpu_watts is None else int(self.cpu_watts * MILLION)


class DisclosuresConfig(_Table):
    keep: bool = False
    days: Annotated[int, Field(ge=1, le=36_500)] = 30

    @model_validator(mode="after")
    def _said(self) -> DisclosuresConfig:
        if "days" in self.model_fields_set and "keep" not in self.model_fields_set:
            raise ValueError("days without keep: nothing is kept unless keep = true")
        return self

    @property
    def keep_ns(self) -> int | None:
        return self.days * _DAY_NS if self.keep else None


class AuthConfig(_Table):
    keys: list[str] = []

    @field_validator("keys")
    @classmethod
    def _digests(cls, keys: list[str]) -> list[str]:
        for key in keys:
            try:
                ContentId.from_text(key)
            except SchemaError:
                # not repeated: someone may have put the key itself here
                raise ValueError("expected b3:<64 lower-case hex>, the BLAKE3 digest of a key") from None
        return keys


class GrantsConfig(_Table):
    """`issuers` are keys (`ed25519:...`) or trust files, `revoked` a file of block ids; relative paths are beside this
    file."""

    issuers: list[Annotated[str, Field(min_length=1)]] = []
    revoked: Annotated[str, Field(min_length=1)] | None = None
    leeway_s: Annotated[int, Field(ge=0, le=3600)] = 2  # between the issuers' clocks and this one


class BlueprintsConfig(_Table):
    """Relative paths are beside this file."""

    roots: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=64)]
    revoked: Annotated[str, Field(min_length=1)]


class LaunchStateConfig(_Table):
    """A relative path is beside this file."""

    state: Annotated[str, Field(min_length=1)]


class CorsConfig(_Table):
    origins: list[str] = []

    @field_validator("origins")
    @classmethod
    def _spelled(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"expected scheme://host[:port] as a browser spells it, or *, not {origin[:80]!r}")
        return origins


def _sealable(name: str) -> str:
    if not fits(name, Name):
        raise ValueError("not a name that a receipt can hold: 1 to 256 printable characters")
    return name


ModelName = Annotated[str, AfterValidator(_sealable)]


class _Backend(_Table):
    aliases: list[ModelName] = []  # what clients may ask for beside its name; several backends may share one
    queue: Annotated[int, Field(ge=0, le=100_000)] | None = None  # in place of the gateway's
    launch_record: Annotated[str, Field(min_length=1)] | None = None  # how it was launched, for its receipts


class _Governable(_Backend):
    blueprint: Annotated[str, Field(min_length=1)] | None = None  # a signed file, which then states all settings

    @model_validator(mode="after")
    def _no_other_lever(self) -> Self:
        levers = sorted(self.model_fields_set - _NO_LEVERS)
        if self.blueprint is not None and levers:
            raise ValueError(f"{', '.join(levers)}: all settings come from the blueprint, which states no such key")
        return self


# Where things are, how long they are waited for and who may ask: all that is left to say under a blueprint.
_NO_LEVERS = frozenset(
    {"kind", "blueprint", "aliases", "queue", "launch_record", "path", "weights", "executable", "start_s", "silent_s",
     "gpus"}
)  # fmt: skip


class GgufBackend(_Governable):
    kind: Literal["gguf"]
    path: Annotated[str, Field(min_length=1)]
    name: ModelName | None = None
    slots: Annotated[int, Field(ge=1, le=64)] | None = None
    context_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    kv_type: Literal["q8_0", "f16", "f32"] | None = None
    flash_attention: bool = True
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    ubatch: Annotated[int, Field(ge=1, le=65_536)] | None = None
    check_threads: Annotated[int, Field(ge=1, le=1024)] | None = None  # for checking known outputs, in an audit
    chat_template: Annotated[str, Field(min_length=1)] | None = None  # a file, in place of the one in the model
    tokenizer_pre: Annotated[str, Field(min_length=1, max_length=127)] | None = None  # where an old file names none
    eos_id: Annotated[int, Field(ge=0, lt=2**31)] | None = None  # likewise
    silent_s: Seconds | None = None  # a child with work that gives no sign of it for so long is killed and replaced


class ReferenceBackend(_Backend):
    kind: Literal["reference"]
    name: ModelName = "reference"
    context_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1_000_000
    slots: Annotated[int, Field(ge=1, le=4096)] = 64


_Text = Annotated[str, Field(min_length=1)]


class _VllmBackend(_Backend):
    name: ModelName | None = None
    slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    tokenizer: _Text | None = None  # a folder, where the tokenizer is not in that of the weights
    chat_template: _Text | None = None
    device: Literal["cpu", "cuda", "rocm", "xpu", "tpu", "hpu"] | None = None
    gpus: Annotated[list[Gpu], Field(max_length=64)] | None = None  # this machine's cards that it computes on
    route: bool = False  # it computes over several hosts, each of which has to report what


class VllmBackend(_VllmBackend):
    kind: Literal["vllm"]
    url: _Text
    model: _Text | None = None  # which of the server's models
    weights: _Text | None = None  # the folder that the server loaded
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    key_file: _Text | None = None


class ManagedVllmBackend(_VllmBackend, _Governable):
    kind: Literal["vllm-managed"]
    weights: _Text
    executable: _Text = "vllm"
    start_s: Annotated[int, Field(ge=1, le=86_400)] | None = None  # until it answers
    flags: list[str] = []


class RuntimeBackend(_Backend):
    """A runtime candidate, served under its id and, as an alias, its logical model. Its own limits hold."""

    kind: Literal["runtime"]
    path: _Text  # its folder or its pack
    models: _Text | None = None
    executable: _Text | None = None  # of vLLM, for a candidate whose engine that is
    name: None = None


Backend = Annotated[
    GgufBackend | ReferenceBackend | VllmBackend | ManagedVllmBackend | RuntimeBackend, Field(discriminator="kind")
]


_KINDS = ("gguf", "reference", "vllm", "vllm-managed", "runtime")


class MeshConfig(_Table):
    gateway: GatewayConfig = GatewayConfig()
    state: StateConfig = StateConfig()
    meter: MeterConfig = MeterConfig()
    disclosures: DisclosuresConfig = DisclosuresConfig()
    auth: AuthConfig = AuthConfig()
    grants: GrantsConfig = GrantsConfig()
    blueprints: BlueprintsConfig | None = None
    launch: LaunchStateConfig | None = None
    cors: CorsConfig = CorsConfig()
    backend: Annotated[list[Backend], Field(min_length=1, max_length=64)]

    @field_validator("backend")
    @classmethod
    def _one_of_each_name(cls, backends: list[Backend]) -> list[Backend]:
        names = [backend.name for backend in backends if backend.name is not None]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two are named {name!r}; give each its own and let them share an alias")
        for backend in backends:
            for alias in backend.aliases:
                if alias in names:
                    raise ValueError(f"alias {alias!r} is the name of a backend")
        return backends

    @model_validator(mode="after")
    def _no_open_door(self) -> Self:
        if "*" in self.cors.origins and not (self.auth.keys or self.grants.issuers):
            raise ValueError("cors.origins: * without [auth] keys lets every web page use this server; name the pages")
        return self

    @model_validator(mode="after")
    def _with_roots(self) -> Self:
        named = any(getattr(backend, "blueprint", None) is not None for backend in self.backend)
        if named and self.blueprints is None:
            raise ValueError("blueprints.roots and blueprints.revoked: missing, and a backend has a blueprint")
        return self

    @classmethod
    def from_toml(cls, text: str, *, source: str = "mesh.toml") -> MeshConfig:
        """Raises UsageError naming every key at fault."""
        try:
            values = tomllib.loads(text, parse_float=Decimal)
        except tomllib.TOMLDecodeError as e:
            raise UsageError(f"{source}: not valid toml: {e}") from None
        except RecursionError:
            raise UsageError(f"{source}: nested too deep") from None
        try:
            return cls.model_validate(values)
        except ValidationError as e:
            faults = "; ".join(_fault(fault) for fault in e.errors(include_url=False))
            raise UsageError(f"{source}: {faults}") from None

    @classmethod
    def load(cls, path: Path) -> MeshConfig:
        """Raises UsageError for what it says, OSError where it cannot be read."""
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_CONFIG_BYTES + 1)
            if len(data) > _MAX_CONFIG_BYTES:
                raise UsageError(f"{path}: over {_MAX_CONFIG_BYTES} bytes")
            return cls.from_toml(data.decode("utf-8"), source=str(path))
        except UnicodeDecodeError:
            raise UsageError(f"{path}: not valid utf-8") from None


def _fault(fault: Any) -> str:
    """`key: what is wrong, got value`. Values under [auth] are left out: they may be secrets."""
    # a union's path names the member it was tried as; the operator's file does not
    path = [str(part) for part in fault["loc"] if part not in _KINDS]
    key = ".".join(path)
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key"
    if fault["type"] == "missing":
        return f"{key}: missing"
    message: str = fault["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not path:  # of the file as a whole: the message names the key
        return message
    value = fault.get("input")
    shown = path[0] != "auth" and isinstance(value, (str, int, Decimal))
    return f"{key}: {message}" + (f", got {str(value)[:80]!r}" if shown else "")
