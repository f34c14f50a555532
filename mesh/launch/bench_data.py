"""What a bench measured: raw counts and times, from which every figure of its report follows. The format
`mesh-launch-bench/1`; what nobody measured is left out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mesh.errors import SchemaError, UsageError
from mesh.launch.toml_file import Table, validated

FORMAT = "mesh-launch-bench/1"
MAX_DATA_BYTES = 64 << 20
MIN_PIECES = 4  # from fewer no pace can be told
_MAX_COUNT = (1 << 63) - 1
_MAX_MS = 253_402_300_800_000  # the year 10,000
T = TypeVar("T", bound=Table)


class Request(Table):
    """`started_ns` since its cell began, the others since it was sent. `events` are those of its stream that had text,
    `pieces` the reads in which they came."""

    stream: int
    started_ns: int
    total_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    events: int | None = None
    pieces: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str | None = None
    failed: str | None = None


class Cell(Table):
    """`depth` is the size of its prompts in tokens, as the served tokenizer counts them. `skipped` says why nothing was
    asked; else there is a request for each stream, and `wall_ns` from the first sent to the last ended."""

    depth: int
    concurrency: int
    repetition: int
    skipped: str | None = None
    wall_ns: int | None = None
    requests: list[Request] = []  # noqa: RUF012  copied by pydantic


class BenchData(Table):
    v: str
    recipe: str
    run: str
    engine: str
    model: str
    way: str  # to the engine: "ssh", through a connection to its node, or "direct"
    endpoint: str
    prompts: str  # which texts, and from which seed
    seed: str
    output_tokens: int  # asked for
    engine_version: str | None = None  # as the engine says it
    warm_up_tokens: int | None = None  # the prompt of a completion before the first cell, which is counted in none
    began_ms: int
    ended_ms: int
    cells: list[Cell]

    def to_json(self) -> bytes:
        return json.dumps(self.model_dump(exclude_none=True), indent=1).encode() + b"\n"

    @property
    def failed(self) -> int:
        """How many cells have no whole measurement."""
        return sum(figures(cell).fault is not None for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one cell; None where it was not measured. Rates are tokens a second. `prefill` is of all streams together,
    until the last of them had its first token; `decode` is the median stream's; `total` is of all outputs over the
    whole cell. The last two of a cell with failures are left out, the others are of the streams that ended well."""

    ttft_ms: float | None = None
    prefill: float | None = None
    decode: float | None = None
    total: float | None = None
    prompt_tokens: float | None = None
    ended: int = 0
    fault: str | None = None


def figures(cell: Cell) -> Figures:
    if cell.skipped is not None:
        return Figures(fault=f"skipped: {cell.skipped}")
    good = [one for one in cell.requests if one.failed is None]
    failed = [one for one in cell.requests if one.failed is not None]
    fault = None
    if failed:
        reasons = ", ".join(dict.fromkeys(one.failed or "" for one in failed))
        fault = f"{len(failed)} of {len(cell.requests)} failed: {reasons}"
    whole = not failed
    first = [one.first_ns for one in good if one.first_ns is not None]
    last_first = max((one.started_ns + one.first_ns for one in good if one.first_ns is not None), default=0)
    return Figures(
        ttft_ms=statistics.median(first) / 1e6 if first else None,
        prefill=_rate(_sum(one.prompt_tokens for one in good), last_first) if whole else None,
        decode=_median(_decode(one) for one in good),
        total=_rate(_sum(one.output_tokens for one in good), cell.wall_ns or 0) if whole else None,
        prompt_tokens=_median(one.prompt_tokens for one in good),
        ended=len(good),
        fault=fault,
    )


def _decode(one: Request) -> float | None:
    """The first token is the prefill's. A server or a line that kept tokens back and sent them together hides how long
    each took: where most came with others, or all in a few pieces, their pace is not known."""
    if one.events is not None and one.pieces is not None and not MIN_PIECES <= one.pieces > one.events / 2:
        return None
    if one.output_tokens is None or one.output_tokens < 2 or one.first_ns is None or one.last_ns is None:
        return None
    return _rate(one.output_tokens - 1, one.last_ns - one.first_ns)


def _sum(values: Iterator[int | None]) -> int | None:
    known = list(values)
    return None if not known or None in known else sum(value or 0 for value in known)


def _rate(tokens: int | None, ns: int) -> float | None:
    return None if tokens is None or ns <= 0 else tokens * 1e9 / ns


def _median(values: Iterator[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def read_json(model: type[T], data: bytes, source: str, version: str = FORMAT) -> T:
    """Raises SchemaError naming the file and the field at fault."""
    if len(data) > MAX_DATA_BYTES:
        raise SchemaError(f"{source}: over {MAX_DATA_BYTES} bytes")
    try:
        told: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise SchemaError(f"{source}: damaged: not valid json") from None
    if not isinstance(told, Mapping):
        raise SchemaError(f"{source}: damaged: expected an object, got {type(told).__name__}")
    if told.get("v") != version:
        raise SchemaError(f"{source}: v is {str(told.get('v'))[:80]!r}, expected {version!r}")
    try:
        return validated(model, dict(told), source)
    except UsageError as e:
        raise SchemaError(str(e)) from None


def read_data(data: bytes, source: str) -> BenchData:
    """Raises SchemaError."""
    read = read_json(BenchData, data, source)
    check_times(read.began_ms, read.ended_ms, source)
    for number, cell in enumerate(read.cells):
        fault = next(_cell_faults(cell), None)
        if fault is not None:
            raise SchemaError(f"{source}: cells.{number}: {fault}")
    return read


def check_times(began_ms: int, ended_ms: int, source: str) -> None:
    """Raises SchemaError for times that no calendar has, or an end before its beginning."""
    if not 0 <= began_ms <= ended_ms < _MAX_MS:
        raise SchemaError(f"{source}: began_ms {str(began_ms)[:20]} and ended_ms {str(ended_ms)[:20]} cannot be")


def _cell_faults(cell: Cell) -> Iterator[str]:
    numbers = [cell.depth, cell.concurrency, cell.repetition, cell.wall_ns or 0]
    if cell.depth < 1 or cell.concurrency < 1 or cell.repetition < 0 or max(numbers) > _MAX_COUNT:
        yield f"numbers that cannot be: {str(numbers)[:200]}"
    if cell.skipped is not None:
        if cell.requests or cell.wall_ns is not None:
            yield "skipped, and measured"
        return
    if len(cell.requests) != cell.concurrency or cell.wall_ns is None or cell.wall_ns <= 0:
        yield f"{len(cell.requests)} requests of {cell.concurrency} streams, wall_ns {cell.wall_ns}"
    for one in cell.requests:
        if one.failed is None and one.first_ns is None:
            yield f"stream {one.stream}: whole, and without a first token"
        times = [one.first_ns, one.last_ns, one.total_ns]
        known = [time for time in times if time is not None]
        counts = [
            one.prompt_tokens or 0,
            one.output_tokens or 0,
            one.events or 0,
            one.pieces or 0,
            one.started_ns,
            *known,
        ]
        if known != sorted(known) or min(counts) < 0 or max(counts) > _MAX_COUNT:
            yield f"stream {one.stream}: times or counts that cannot be: {str(counts)[:200]}"
