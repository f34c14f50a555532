"""`python -m bench [--quick] [--only WORD] [--out FOLDER]`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.measure import FULL, QUICK, Comparison, Plan, Row, measure
from bench.report import machine, results_json, results_md, table
from bench.rows import ROWS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Side-by-side measurements.")
    parser.add_argument("--quick", action="store_true", help="few short rounds: whether it runs, not how fast")
    parser.add_argument("--only", metavar="WORD", action="append", help="rows with WORD in their name; may be repeated")
    parser.add_argument("--out", type=Path, help="folder for results.json and RESULTS.md (default: bench/)")
    args = parser.parse_args(argv)
    chosen = [row for row in ROWS if not args.only or any(word in row.name for word in args.only)]
    if not chosen:
        parser.error(f"no row is called {' or '.join(args.only)}: there are {', '.join(row.name for row in ROWS)}")
    if args.out is None and (args.quick or args.only):
        parser.error("a part of the measurements needs a folder of its own: --out")
    plan = QUICK if args.quick else FULL
    rows = [_measure(comparison, plan) for comparison in chosen]
    folder = args.out or Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "plan": asdict(plan)}
    (folder / "results.json").write_text(results_json(rows, about))
    (folder / "RESULTS.md").write_text(results_md(rows, about))
    print(table(rows), end="")
    for row in rows:
        if row.reason is not None:
            print(f"bench: SKIPPED: {row.name}: {row.reason}", file=sys.stderr)
    return 0


def _measure(comparison: Comparison, plan: Plan) -> Row:
    print(f"bench: {comparison.name} ...", file=sys.stderr, flush=True)
    return measure(comparison, plan)


if __name__ == "__main__":
    sys.exit(main())
