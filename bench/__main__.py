"""`python -m bench [--quick] [--only WORD] [--keep] [--out FOLDER]`"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.measure import FULL, QUICK, Comparison, Plan, Row, measure
from bench.report import machine, results_json, results_md, table
from bench.rows import ROWS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Side-by-side measurements.")
    parser.add_argument("--quick", action="store_true", help="few short rounds: whether it runs, not how fast")
    parser.add_argument("--only", metavar="WORD", action="append", help="rows with WORD in their name; may be repeated")
    parser.add_argument(
        "--keep", action="store_true", help="leave the rows that are not measured as they are in the file"
    )
    parser.add_argument("--out", type=Path, help="folder for results.json and RESULTS.md (default: bench/)")
    args = parser.parse_args(argv)
    chosen = [row for row in ROWS if not args.only or any(map(partial(_means, row.name), args.only))]
    if not chosen:
        parser.error(f"no row is called {' or '.join(args.only)}: there are {', '.join(row.name for row in ROWS)}")
    if args.out is None and (args.quick or (args.only and not args.keep)):
        parser.error("a part of the measurements needs a folder of its own: --out; or --keep, to leave the others")
    plan = QUICK if args.quick else FULL
    folder = args.out or Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    measured = {comparison.name: _measure(comparison, plan) for comparison in chosen}
    kept = _kept(folder / "results.json") if args.keep else {}
    found = kept | measured
    rows = [found[row.name] for row in ROWS if row.name in found]
    about = {"machine": machine(), "plan": asdict(plan)}
    (folder / "results.json").write_text(results_json(rows, about))
    (folder / "RESULTS.md").write_text(results_md(rows, about))
    print(table(rows), end="")
    for row in measured.values():
        if row.reason is not None:
            print(f"bench: SKIPPED: {row.name}: {row.reason}", file=sys.stderr)
    return 0


def _means(name: str, word: str) -> bool:
    """A word that is the whole name of a row means that row alone."""
    return word == name if any(word == row.name for row in ROWS) else word in name


def _kept(file: Path) -> dict[str, Row]:
    """The rows of an earlier run by their names; none where there was none."""
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    return {row["name"]: Row(**row) for row in rows}


def _measure(comparison: Comparison, plan: Plan) -> Row:
    print(f"bench: {comparison.name} ...", file=sys.stderr, flush=True)
    return measure(comparison, plan)


if __name__ == "__main__":
    sys.exit(main())
