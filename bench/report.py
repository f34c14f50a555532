"""What is written down of a run: results.json for programs, a table for people."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from bench.measure import Row

_COLUMNS = ("row", "ours", "peer", "unit", "ratio (ours / peer)", "goal", "met")
_OF_NOTE = ("blake3", "cbor2", "pydantic", "pynacl")


def machine() -> dict[str, Any]:
    """Enough to know what the figures are worth elsewhere, and nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{package: version(package) for package in _OF_NOTE},
    }


def results_json(rows: Sequence[Row], about: dict[str, Any]) -> str:
    return json.dumps({**about, "rows": [row.to_map() for row in rows]}, indent=2) + "\n"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table that reads as well unrendered."""
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths))
    return "".join(f"{line} |\n" for line in lines)


def results_md(rows: Sequence[Row], about: dict[str, Any]) -> str:
    host = about["machine"]
    notes = [f"- **{row.name}**: {_note(row)}\n" for row in rows]
    return (
        "# Side by side\n\nWritten by `make bench`: the sides of a row in turns within one run, medians with the"
        f" smallest and largest round.\n{host['cores']} cores ({host['architecture']}), Python {host['python']}, SQLite"
        f" {host['sqlite']}.\n\n{table(rows)}\n{''.join(notes)}"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _with_spread(row.ours, row.ours_spread),
        _with_spread(row.peer, row.peer_spread),
        row.unit,
        _with_spread(row.ratio, row.ratio_spread),
        row.goal or "-",
        _met(row),
    )


def _met(row: Row) -> str:
    if row.met is None:
        return "SKIPPED" if row.ratio is None else "-"
    return "yes" if row.met else "MISSED"


def _with_spread(figure: float | None, spread: tuple[float, float] | None) -> str:
    if figure is None or spread is None:
        return "-"
    return f"{figure:g} ({spread[0]:g} to {spread[1]:g})"


def _note(row: Row) -> str:
    peer = f"{row.peer_is} ({row.peer_version})" if row.peer_version else row.peer_is
    skipped = f" Skipped: {row.reason}." if row.reason else ""
    limit = f" Limit: {row.limit}." if row.limit else ""
    return f"{row.ours_is}; beside: {peer}. {row.rounds} rounds.{skipped}{limit}"
