"""What a benchmark leaves: which candidate, payload and machine, every request with its receipt.

The receipts are the evidence: a figure here that they do not bear out is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from mesh.errors import CandidateError
from mesh.runtime.candidate import Candidate
from mesh.runtime.descriptor import Descriptor
from mesh.runtime.document import canonical, parse
from mesh.runtime.faults import Contradiction, Fault, Table, faults_of, raise_faults
from mesh.runtime.kinds import Natural, Positive, Sha256Id, Text, Version, equal, matching
from mesh.runtime.matrix import Cell, contexts
from mesh.runtime.prompts import NAME

SCHEMA_VERSION: Final = 1
MAX_RECORD_BYTES: Final = 32 << 20
MAX_RECORD_PARTS: Final = 1 << 21  # strings and separators; a request has about 23
Blake3 = Annotated[str, matching(r"b3:[0-9a-f]{64}", "b3:<64 lower-case hex digits>")]
Payload = Annotated[str, matching(r"(told:)?sha256:[0-9a-f]{64}", "sha256:<64 hex digits>, told: where not compared")]


class CandidateOf(Table):
    id: str
    version: Version
    runtime_digest: Sha256Id
    contract_sha256: Sha256Id
    payload: Payload | None = None


class Machine(Table):
    """As its kernel says; nothing that names it among others."""

    system: Text
    release: Text
    architecture: Text
    processor: Text
    cores: Positive
    memory_bytes: Positive | None = None
    python: Text
    mesh: Text


class EngineOf(Table):
    backend_id: Text
    settings_digest: Blake3
    deterministic: bool
    weights_digest: Blake3 | None = None


class Energy(Table):
    basis: Literal["measured", "allocated", "modelled", "unresolved", "absent"]
    uj: Natural | None = None


class Measured(Table):
    """One request. Tokens and energy are its receipt's; `first_ns` and `total_ns` are what its client waited for the
    first token and for all of them."""

    receipt: Blake3
    tokens_in: Natural
    tokens_out: Natural
    finish: Text
    first_ns: Positive
    total_ns: Positive
    energy: Energy


class Sample(Table):
    """Milliseconds since the cell began; bytes of memory that were available, and that the engine held."""

    at_ms: Natural
    available_bytes: Natural | None = None
    engine_bytes: Natural | None = None


class CellOf(Table):
    """`context` counts starts of the engine from 0. A cell that this candidate's limits leave no room for says so."""

    context: Natural
    part: Literal["cases", "short", "ttft_cache"]
    case: Text
    domain: Literal["code", "prose"]
    prompt_tokens: Positive
    concurrency: Positive
    repetition: Natural
    wall_ns: Positive | None = None
    requests: list[Measured] = Field(default_factory=list)
    samples: list[Sample] = Field(default_factory=list)
    skipped: Text | None = None

    def contradictions(self) -> Iterator[Fault]:
        if self.skipped is None:
            if len(self.requests) != self.concurrency:
                yield Fault("requests", f"expected {self.concurrency}, got {len(self.requests)}")
            if self.wall_ns is None:
                yield Fault("wall_ns", "missing")
            for number, request in enumerate(self.requests):
                path = f"requests[{number}]"
                if request.first_ns > request.total_ns:
                    yield Fault(f"{path}.first_ns", f"{request.first_ns}, after the end at {request.total_ns}")
                if self.wall_ns is not None and request.total_ns > self.wall_ns:
                    yield Fault(f"{path}.total_ns", f"{request.total_ns}, longer than the cell's {self.wall_ns}")
        elif self.requests or self.wall_ns is not None:
            yield Fault("skipped", "expected no requests where the cell was skipped")

    def is_of(self, context: int, cell: Cell) -> bool:
        return (self.context, self.part, self.case, self.domain, self.prompt_tokens, self.concurrency,
                self.repetition) == (context, cell.part, cell.case, cell.domain, cell.prompt_tokens, cell.concurrency,
                                     cell.repetition)  # fmt: skip


def _once(cells: list[CellOf]) -> list[CellOf]:
    seen: set[str] = set()
    faults = []
    for at, cell in enumerate(cells):
        for number, request in enumerate(cell.requests):
            if request.receipt in seen:
                faults.append(Fault(f"[{at}].requests[{number}].receipt", "stands for another request too"))
            seen.add(request.receipt)
    if faults:
        raise Contradiction(faults)
    return cells


class Record(Table):
    schema_version: Annotated[int, equal(SCHEMA_VERSION)]
    prompts: Text
    steward: Annotated[str, matching(r"ed25519:[0-9a-f]{64}", "ed25519:<64 lower-case hex digits>")]
    began_ms: Positive  # Unix time
    ended_ms: Positive
    candidate: CandidateOf
    machine: Machine
    engines: Annotated[list[EngineOf], Field(min_length=1)]  # one for each start
    cells: Annotated[list[CellOf], Field(min_length=1), AfterValidator(_once)]

    @classmethod
    def from_json(cls, data: bytes, *, what: str) -> Self:
        """Raises CandidateError naming every field at fault."""
        document = parse(data, what, max_bytes=MAX_RECORD_BYTES, max_parts=MAX_RECORD_PARTS)
        try:
            record = cls.model_validate(document)
        except ValidationError as e:
            raise_faults(faults_of(e), what)
            raise
        if record.to_json() != data:
            raise CandidateError(f"{what}: not the canonical spelling of what it says")
        return record

    def to_json(self) -> bytes:
        return canonical(self.model_dump(exclude_unset=True))


def candidate_of(candidate: Candidate, descriptor: Descriptor, payload: str | None) -> CandidateOf:
    told: dict[str, Any] = {} if payload is None else {"payload": payload}
    return CandidateOf(
        id=candidate.id, version=candidate.version, runtime_digest=f"sha256:{descriptor.digest}",
        contract_sha256=f"sha256:{candidate.contract_digests['benchmark_contract_sha256']}", **told,
    )  # fmt: skip


def record_faults(record: Record, candidate: Candidate, descriptor: Descriptor) -> list[Fault]:
    """Where a record is not of this candidate, or not of the whole matrix that it declares."""
    return list(_faults(record, candidate, descriptor))


def _faults(record: Record, candidate: Candidate, descriptor: Descriptor) -> Iterator[Fault]:
    expected = candidate_of(candidate, descriptor, None)
    for name in ("id", "version", "runtime_digest", "contract_sha256"):
        if (got := getattr(record.candidate, name)) != getattr(expected, name):
            yield Fault(f"candidate.{name}", f"expected {getattr(expected, name)}, got {got}")
    payload = record.candidate.payload
    if (payload or "").removeprefix("told:") != (candidate.payload_id or ""):
        yield Fault("candidate.payload", f"expected {candidate.payload_id}, got {payload}")
    if record.prompts != NAME:
        yield Fault("prompts", f"expected {NAME}, got {record.prompts[:80]!a}")
    groups = contexts(candidate.benchmark.contract)
    if len(record.engines) != len(groups):
        yield Fault("engines", f"expected {len(groups)}, one for each start, got {len(record.engines)}")
    declared = [(number, cell) for number, group in enumerate(groups) for cell in group]
    if len(record.cells) != len(declared):
        yield Fault("cells", f"expected the whole matrix, {len(declared)}, got {len(record.cells)}")
    for at, (found, (number, cell)) in enumerate(zip(record.cells, declared, strict=False)):
        if not found.is_of(number, cell):
            yield Fault(f"cells[{at}]", f"expected {cell.case} {cell.domain} of {cell.concurrency}")
        least, most = cell.request.min_completion_tokens, cell.request.output_tokens
        for position, request in enumerate(found.requests):
            path = f"cells[{at}].requests[{position}]"
            if request.tokens_in != cell.prompt_tokens:
                yield Fault(f"{path}.tokens_in", f"expected {cell.prompt_tokens}, got {request.tokens_in}")
            if not least <= request.tokens_out <= most:
                yield Fault(f"{path}.tokens_out", f"expected {least} to {most}, got {request.tokens_out}")
            if cell.request.require_natural_stop and request.finish != "stop":
                yield Fault(f"{path}.finish", f"expected stop, got {request.finish[:80]!a}")
