"""Tables for people: as wide as a terminal, and in a file or a pipe as long as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from mesh.cli.console import printable


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Any:
    """A table without lines; the columns in `right` hold numbers. Nothing in a cell is read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def print_table(table: Any) -> None:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width
        console.width = max(80, Measurement.get(console, console.options.update(width=10_000), table).maximum)
    console.print(table)
