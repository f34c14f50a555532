"""The figures of benches as lines of tables: for a terminal, for Markdown, for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mesh.cli.console import printable
from mesh.cli.words import utc
from mesh.launch.bench_data import Cell, figures

if TYPE_CHECKING:
    from mesh.launch.bench_data import BenchData
    from mesh.launch.bench_package import Manifest

HEADINGS = (
    "prompt tokens", "streams", "first token, ms", "prefill, tokens/s", "decode, tokens/s", "all output, tokens/s",
    "what failed",
)  # fmt: skip
UNKNOWN = "not known"
RATES = (
    "Rates are tokens a second: prefill of all streams together until the last one's first token, decode of the median "
    "stream, all output over the whole cell. Each prompt is a text of its own from its first word on. Where most of a "
    "stream came in pieces with others, nobody saw how long each token took, and its decode is not known."
)


def rows(data: BenchData) -> list[tuple[str, ...]]:
    """A row for each cell; what was not measured says so."""
    return [_row(cell) for cell in data.cells]


def _row(cell: Cell) -> tuple[str, ...]:
    told = figures(cell)
    depth = str(cell.depth)
    if told.prompt_tokens is not None and round(told.prompt_tokens) != cell.depth:
        depth += f" (the engine counted {told.prompt_tokens:g})"
    streams = str(cell.concurrency) + (f", again {cell.repetition}" if cell.repetition else "")
    shown = (_number(told.ttft_ms), _number(told.prefill), _number(told.decode), _number(told.total))
    return (depth, streams, *shown, told.fault or "")


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def terminal_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    table = [[printable(cell) for cell in line] for line in (headings, *lines)]
    widths = [max(len(line[column]) for line in table) for column in range(len(headings))]
    last = len(headings) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    )


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    shown = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in shown)


def escaped(text: str) -> str:
    """What others named must not become markup or end a cell."""
    shown = printable(text).replace("\\", "\\\\")
    for mark in "|<>`*_[]":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def facts(manifest: Manifest, data: BenchData) -> list[tuple[str, str]]:
    """What a reader needs beside the figures, by its name."""
    pairs = [
        ("recipe", f"{manifest.recipe}, sha256 {manifest.recipe_sha256}"),
        ("run", f"{manifest.run} on {manifest.cluster}"),
        ("model", f"{manifest.model}, by {data.engine}" + (f" {data.engine_version}" if data.engine_version else "")),
        ("launch record", manifest.launch_digest or "none"),
        *((f"configuration {name}", f"sha256 {digest}") for name, digest in manifest.config_sha256.items()),
    ]
    for node in manifest.nodes:
        ran = [f"image {node.image}"] if node.image else [f"program sha256 {node.program}"] if node.program else []
        checksums = [f"{key} {value}" for key, value in sorted(node.labels.items()) if key.endswith("checksum")]
        machine = [_of_machine(key, value) for key, value in node.machine.items()]
        pairs.append((f"rank {node.rank} on {node.node}", "; ".join([*ran, *checksums, *machine]) or UNKNOWN))
    way = "through ssh to the engine's node" if data.way == "ssh" else "directly to the engine"
    pairs += [
        ("measured from", "; ".join(f"{key} {value}" for key, value in manifest.launcher.items())),
        ("measured how", f"{data.endpoint} {way}; {data.output_tokens} output tokens asked for; "
                         f"texts {data.prompts}, seed {data.seed}; " + (
                             "no warm-up" if data.warm_up_tokens is None else
                             f"after a completion of {data.warm_up_tokens} prompt tokens that is not counted")),
    ]  # fmt: skip
    return pairs


def _of_machine(key: str, value: str) -> str:
    if key == "memory_kib" and value.isdigit():
        return f"memory {int(value) / 1024**2:.1f} GiB"
    return f"{key} {value}"


def markdown_report(manifest: Manifest, data: BenchData) -> str:
    """The report of one bench: figures, provenance, and what had changed since the launch."""
    parts = [
        f"# Bench of {escaped(manifest.recipe)}, {escaped(manifest.label)}", when(data),
        markdown_table(HEADINGS, rows(data)),
        RATES,
        "## Provenance", "\n".join(f"- {escaped(name)}: {escaped(value)}" for name, value in facts(manifest, data)),
        "## Drift", "\n".join(f"- {escaped(line)}" for line in drift_lines(manifest)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def when(data: BenchData) -> str:
    return f"From {utc(data.began_ms * 10**6)} to {utc(data.ended_ms * 10**6)}."


def drift_lines(manifest: Manifest) -> list[str]:
    """When the bench ended."""
    lines = [*manifest.drift, *(f"could not be looked at: {line}" for line in manifest.unknown)]
    return lines or ["none: recipe, configuration and what runs are as they were launched"]
