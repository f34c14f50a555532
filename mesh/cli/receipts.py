"""`mesh receipts`: look into a ledger, read-only, beside a running gateway or where none runs."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli import receipts_energy
from mesh.cli.console import counted, emit, note, say
from mesh.cli.engines import positive
from mesh.cli.entries import opened
from mesh.cli.exits import ACCEPTED
from mesh.cli.newfile import write_new
from mesh.cli.state import add_state_flag, state_of
from mesh.cli.tables import print_table, table_of
from mesh.errors import NotFound, SchemaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh.ledger.reader import LedgerReader
    from mesh.ledger.values import Entry
    from mesh.schema.envelope import Sealed

_ID_HELP = "a receipt id (b3:...), a serve's UUID, or a seq"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("receipts", help="list, show, export or add up the receipts of a ledger")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the newest receipts, or all")
    how_many = listing.add_mutually_exclusive_group()
    how_many.add_argument("--limit", type=positive, default=20, metavar="N", help="how many, newest first (20)")
    how_many.add_argument("--all", action="store_true", help="all of them, newest first")
    listing.set_defaults(run=run_list)

    showing = actions.add_parser("show", help="one receipt in words")
    showing.add_argument("id", metavar="ID", help=_ID_HELP)
    showing.set_defaults(run=run_show)

    exporting = actions.add_parser(
        "export",
        help="the signed bytes, as files",
        description="Writes signed envelopes exactly as they are. One receipt becomes one file (`-`: stdout). All of "
        "them, with the checkpoints, become a directory, or one file where PATH ends in .cborseq.",
    )
    which = exporting.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID", help=_ID_HELP)
    which.add_argument("--all", action="store_true", help="every receipt, and every checkpoint")
    exporting.add_argument("--out", required=True, metavar="PATH", help="where to; must not exist")
    exporting.set_defaults(run=run_export)

    for action in (listing, showing, exporting, receipts_energy.add(actions)):
        add_state_flag(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run_list(args: argparse.Namespace) -> int:
    from mesh.schema.ids import ContentId, steward_text
    from mesh.schema.view import sealed_view

    with state_of(args).open_reader() as reader:
        steward, count, head = reader.steward(), reader.count(), reader.head()
        open_serves = len(reader.open_intents())
        entries = reader.receipts(limit=None if args.all else args.limit, newest_first=True)
        found = [opened(entry, steward) for entry in entries]
    if args.json:
        told: dict[str, Any] = {"steward": steward_text(steward), "count": count}
        if head is not None:
            told["head"] = ContentId(head).text
        emit({**told, "open_serves": open_serves, "receipts": [sealed_view(sealed) for sealed in found]})
        return ACCEPTED
    say(f"{counted(count, 'receipt')} of {steward_text(steward)}")
    if open_serves:
        say(f"begun and without a receipt yet: {counted(open_serves, 'serve')}")
    if found:
        _print_table(found)
    return ACCEPTED


def run_show(args: argparse.Namespace) -> int:
    from mesh.cli.words import sealed_words
    from mesh.schema.view import sealed_view

    with state_of(args).open_reader() as reader:
        sealed = opened(find(reader, args.id), reader.steward())
    if args.json:
        emit(sealed_view(sealed))
    else:
        say(sealed_words(sealed))
    return ACCEPTED


def run_export(args: argparse.Namespace) -> int:
    with state_of(args).open_reader() as reader:
        if args.all:
            written = _export_all(reader, args.out)
        else:
            written = 1
            envelope = find(reader, args.id).envelope
            if args.out == "-":
                if args.json:
                    raise UsageError("--out - and --json both want stdout")
                sys.stdout.buffer.write(envelope)
            else:
                write_new(Path(args.out), (envelope,))
    if args.json:
        emit({"out": args.out, "receipts": written})
    else:
        note(f"{counted(written, 'receipt')} written to {args.out}")
    return ACCEPTED


def find(reader: LedgerReader, text: str) -> Entry:
    """The receipt that a receipt id, serve UUID or seq names. Raises UsageError for none of these, NotFound."""
    from mesh.schema.ids import ContentId, serve_id_from_text
    from mesh.schema.limits import MAX_UINT

    try:
        if text.startswith("b3:"):
            entry = reader.by_receipt(ContentId.from_text(text))
        elif text.isascii() and text.isdigit():
            seq = int(text) if len(text) < 20 else MAX_UINT
            entry = next(reader.receipts(after_seq=seq - 1, limit=1), None) if seq < MAX_UINT else None
        else:
            entry = reader.by_serve(serve_id_from_text(text))
    except SchemaError:
        raise UsageError(f"{text[:80]!r} is not {_ID_HELP}") from None
    if entry is None:
        raise NotFound(f"receipt {text}: not in this ledger")
    return entry


def _export_all(reader: LedgerReader, out: str) -> int:
    from mesh.cli.evidence import ARCHIVE_SUFFIX, ENVELOPE_SUFFIX

    if out == "-":
        raise UsageError("--all writes a directory or a .cborseq file, not stdout")
    # the checkpoints first: a gateway at work adds receipts meanwhile, and they may only be ahead of them
    checkpoints = [envelope for _, envelope in reader.checkpoints()]
    count = 0

    def envelopes() -> Iterator[bytes]:
        nonlocal count
        for entry in reader.receipts():
            count += 1
            yield entry.envelope

    path = Path(out)
    if path.suffix == ARCHIVE_SUFFIX:
        write_new(path, itertools.chain(checkpoints, envelopes()))
        return count
    path.mkdir()
    for number, envelope in enumerate(checkpoints, 1):
        last = number == len(checkpoints)
        write_new(path / f"checkpoint{'' if last else f'-{number:012d}'}{ENVELOPE_SUFFIX}", (envelope,))
    for seq, envelope in enumerate(envelopes()):
        write_new(path / f"receipt-{seq:012d}{ENVELOPE_SUFFIX}", (envelope,))
    return count


def _print_table(found: list[Sealed]) -> None:
    headings = ("seq", "ended", "model", "finish", "in", "out", "energy", "serve")
    print_table(table_of(headings, map(_cells, found), right=("seq", "in", "out")))


def _cells(sealed: Sealed) -> tuple[str, ...]:
    from mesh.cli.words import joules, utc
    from mesh.schema.ids import serve_id_text

    receipt = sealed.value
    outcome, energy = receipt.outcome, receipt.energy
    return (
        str(receipt.seq),
        utc(receipt.ended_ns),
        receipt.engine.recipe_id,
        outcome.finish,
        "" if outcome.tokens_in is None else str(outcome.tokens_in),
        "" if outcome.tokens_out is None else str(outcome.tokens_out),
        energy.basis if energy.uj is None else f"{joules(energy.uj)} {energy.basis}",
        serve_id_text(receipt.serve_id),
    )
