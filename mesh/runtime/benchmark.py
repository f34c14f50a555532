"""The contract of a candidate's benchmark: which requests it is measured by. Each version added fields."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from mesh.runtime.faults import Fault, Table, repeated
from mesh.runtime.kinds import Natural, Positive, Safe, Sha256, equal
from mesh.runtime.limits import MAX_CONCURRENCY

OLDEST: Final = 2
NEWEST: Final = 8
# The first version that has a field; what a contract's own version has is required, anything else unknown.
_SINCE: Final = {"domains": 3, "execution": 3, "short": 5, "ttft_cache": 7}
_STREAM_PREFIX_SINCE: Final = 4
_SHORT_CONCURRENCIES_SINCE: Final = 6
_SHORT_CONCURRENCIES: Final = [1, 2, 4]
_PAYLOAD_SINCE: Final = 8
_FRESH_CONTEXT_SINCE: Final = 8
_TTFT_TOKENS: Final = 64_000

Domain = Literal["code", "prose"]


class Generator(Table):
    id: Literal["letsinfer-code-prose"]
    version: int


class Tokenizer(Table):
    capability: Literal["engine-rendered-chat-count-v1"]
    render_contract: Literal["openai-chat-user-v1"]
    model_sha256: Sha256
    engine_image_sha256: Sha256 | None = None
    engine_payload_sha256: Sha256 | None = None


def _temperature(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError("expected a finite number of at least 0")
    return value


class Request(Table):
    output_tokens: Positive
    min_completion_tokens: Positive
    require_natural_stop: bool
    temperature: Annotated[int | float, AfterValidator(_temperature)]
    seed: Natural

    def contradictions(self) -> Iterator[Fault]:
        if self.min_completion_tokens > self.output_tokens:
            yield Fault("min_completion_tokens", f"expected at most output_tokens, {self.output_tokens}")


def _ascending(values: list[int]) -> list[int]:
    if values != sorted(set(values)):
        raise ValueError("expected ascending numbers, each once")
    return values


Concurrencies = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]], Field(min_length=1), AfterValidator(_ascending)
]


class Case(Table):
    id: Safe
    prompt_tokens: Positive
    concurrencies: Concurrencies


class Execution(Table):
    isolation: Literal["fresh-matrix", "fresh-context"]
    prefix_state: Literal["shared"]
    samples_per_cell: Annotated[int, equal(1)]
    stream_prefix: Literal["shared-body"] | None = None


class Short(Table):
    domains: list[Domain]
    prompt_tokens: Positive
    request: Request
    concurrencies: list[int] | None = None

    def contradictions(self) -> Iterator[Fault]:
        if self.domains != ["code", "prose"]:
            yield Fault("domains", "expected code and prose, in this order")


class TtftCache(Table):
    prompt_tokens: Annotated[int, equal(_TTFT_TOKENS)]
    prompt_domain: Literal["code"]
    repetitions: Annotated[int, equal(2)]
    request: Request

    def contradictions(self) -> Iterator[Fault]:
        if self.request.output_tokens != 1:
            yield Fault("request.output_tokens", f"expected 1, got {self.request.output_tokens}")
        if self.request.temperature != 0:
            yield Fault("request.temperature", f"expected 0, got {self.request.temperature}")


def _in_order(domains: list[Any]) -> list[Any]:
    if not domains or domains != [name for name in ("code", "prose") if name in domains]:
        raise ValueError("expected code, prose or both, in this order")
    return domains


class Contract(Table):
    schema_version: Annotated[int, Field(ge=OLDEST, le=NEWEST)]
    suite: Literal["letsinfer-code-prose-v1"]
    generator: Generator
    tokenizer: Tokenizer
    request: Request
    sample_interval_seconds: Annotated[int, Field(ge=1, le=60)]
    cases: Annotated[list[Case], Field(min_length=1)]
    domains: Annotated[list[Domain], AfterValidator(_in_order)] | None = None
    execution: Execution | None = None
    short: Short | None = None
    ttft_cache: TtftCache | None = None

    def contradictions(self) -> Iterator[Fault]:
        version = self.schema_version
        if self.generator.version != version:
            yield Fault("generator.version", f"expected schema_version, {version}, got {self.generator.version}")
        for name, since in _SINCE.items():
            yield from _of_version(self, name, version, since)
        if self.execution is not None:
            yield from _under("execution", _of_version(self.execution, "stream_prefix", version, _STREAM_PREFIX_SINCE))
            if self.execution.isolation == "fresh-context" and version < _FRESH_CONTEXT_SINCE:
                yield Fault("execution.isolation", f"fresh-context came with version {_FRESH_CONTEXT_SINCE}")
        if self.short is not None:
            had = _of_version(self.short, "concurrencies", version, _SHORT_CONCURRENCIES_SINCE)
            yield from _under("short", had)
            if self.short.concurrencies not in (None, _SHORT_CONCURRENCIES):
                yield Fault("short.concurrencies", f"expected {_SHORT_CONCURRENCIES}, got {self.short.concurrencies}")
        for name, since, until in (
            ("engine_payload_sha256", _PAYLOAD_SINCE, NEWEST), ("engine_image_sha256", OLDEST, _PAYLOAD_SINCE - 1)
        ):  # fmt: skip
            yield from _under("tokenizer", _of_version(self.tokenizer, name, version, since, until))
        for at, name in repeated(case.id for case in self.cases):
            yield Fault(f"cases[{at}].id", f"{name!r} is the id of another case too")


class Benchmark(Table):
    contract: Contract


def _of_version(table: Table, name: str, version: int, since: int, until: int = NEWEST) -> Iterator[Fault]:
    there, due = name in table.model_fields_set, since <= version <= until
    if due and not there:
        yield Fault(name, "missing")
    elif there and not due:
        yield Fault(name, f"unknown field in version {version}")


def _under(path: str, faults: Iterator[Fault]) -> Iterator[Fault]:
    return (fault.under(path) for fault in faults)
