"""`mesh receipts energy`: what the serves of a ledger spent, by model, caller, grant and day."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, say
from mesh.cli.energy_report import KEYS, Factors, Group, Report, report
from mesh.cli.entries import opened
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import write_new
from mesh.cli.state import state_of
from mesh.cli.tables import print_table, table_of
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.ledger.reader import LedgerReader
    from mesh.schema.receipt import Receipt

_MAX_FACTOR = 1_000_000


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        "energy",
        help="what was spent, by model, caller, grant and day",
        description="Adds up the figures of receipts as they are. Factors that no receipt knows are applied once, "
        "to the sums: --pue gives facility_kwh, and cost and co2e_g are of that.",
    )
    parser.add_argument("--by", type=_keys, default=("model",), metavar="KEY,...", help=f"of {', '.join(KEYS)} (model)")
    parser.add_argument("--price", type=_factor, metavar="P", help="of a kWh, in any currency")
    parser.add_argument("--pue", type=_pue, metavar="R", help="the facility's energy over that of the machines")
    parser.add_argument("--grid", type=_factor, metavar="G", help="grams of CO2e of a kWh")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument("--svg", metavar="FILE", help="also draw it; FILE must not exist")
    parser.set_defaults(run=run)
    return parser


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(text.split(","))
    if len(set(keys)) != len(keys) or not set(keys) <= set(KEYS):
        raise argparse.ArgumentTypeError(f"{text!r} is not some of {', '.join(KEYS)}, each once")
    return keys


def _factor(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not value.is_finite() or not 0 < value <= _MAX_FACTOR:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most {_MAX_FACTOR}")
    return value


def _pue(text: str) -> Decimal:
    value = _factor(text)
    if value < 1:  # the machines are in the facility
        raise argparse.ArgumentTypeError(f"{text!r} is below 1, less than the machines alone")
    return value


def run(args: argparse.Namespace) -> int:
    if args.csv and args.json:
        raise UsageError("--csv and --json both want stdout")
    factors = Factors(args.price, args.pue, args.grid)
    with state_of(args).open_reader() as reader:
        found = report(_receipts(reader), args.by)
    if args.svg is not None:
        from mesh.cli.energy_plot import svg

        write_new(Path(args.svg), [svg(found)])
    if args.json:
        emit(_view(found, factors))
    elif args.csv:
        _print_csv(found, factors)
    else:
        _print(found, factors)
    return ACCEPTED


def _receipts(reader: LedgerReader) -> Iterator[tuple[Receipt, str]]:
    steward = reader.steward()
    for entry in reader.receipts():
        yield opened(entry, steward).value, entry.caller


def _fields(group: Group, factors: Factors) -> dict[str, Any]:
    """What is known of a group by name; what is not known is not there."""
    from mesh.schema.energy import BASES

    fields: dict[str, Any] = {"serves": group.serves, **{basis: group.bases[basis] for basis in BASES}}
    if not group.figures:
        return fields
    fields |= {"uj": group.uj, "tokens_accepted": group.tokens}
    per_token, spread = group.joules_per_token(), group.spread()
    if per_token is not None and spread is not None:
        fields["j_per_token"] = _plain(per_token)
        fields |= {f"j_per_token_p{part}": _plain(j) for part, j in zip((10, 50, 90), spread, strict=True)}
    return fields | {name: _plain(amount) for name, amount in factors.applied(group.uj).items()}


def _view(found: Report, factors: Factors) -> dict[str, Any]:
    given = {"price_per_kwh": factors.price, "pue": factors.pue, "grid_g_per_kwh": factors.grid_g_per_kwh}
    return {
        "by": list(found.by),
        "factors": {name: _plain(value) for name, value in given.items() if value is not None},
        "groups": [
            dict(zip(found.by, group.key, strict=True)) | _fields(group, factors) for group in found.groups
        ],
        "total": _fields(found.total, factors),
    }  # fmt: skip


def _print_csv(found: Report, factors: Factors) -> None:
    """One line a group. The sum of the lines is the total, which is therefore not among them."""
    writer = csv.DictWriter(sys.stdout, [*found.by, *_fields(found.total, factors)], restval="", lineterminator="\n")
    writer.writeheader()
    for group in found.groups:
        writer.writerow(dict(zip(found.by, group.key, strict=True)) | _fields(group, factors))


def _print(found: Report, factors: Factors) -> None:
    amounts = list(factors.applied(0))
    headings = (*found.by, "serves", "joules", "of", "tokens", "J/token", "10-50-90 %", *amounts)
    rows = [(*group.key, *_cells(group, factors)) for group in found.groups]
    if len(rows) > 1:
        rows.append(("total", *("" for _ in found.by[1:]), *_cells(found.total, factors)))
    if not rows:
        say("no receipts")
        return
    print_table(table_of(headings, rows, right=("serves", "joules", "tokens", "J/token", *amounts)))
    without = found.total.bases["unresolved"] + found.total.bases["absent"]
    if without:
        say(f"{counted(without, 'serve')} without a figure")


def _cells(group: Group, factors: Factors) -> tuple[str, ...]:
    from mesh.schema.energy import BASES

    bases = ", ".join(f"{group.bases[basis]} {basis}" for basis in BASES if group.bases[basis])
    per_token, spread = group.joules_per_token(), group.spread()
    return (
        str(group.serves),
        _plain(Decimal(group.uj).scaleb(-6)) if group.figures else "",
        bases,
        str(group.tokens) if group.tokens else "",
        "" if per_token is None else _plain(per_token),
        "" if spread is None else " ".join(map(_plain, spread)),
        *(_plain(amount) if group.figures else "" for amount in factors.applied(group.uj).values()),
    )


def _plain(value: Decimal) -> str:
    return format(value, "f")
