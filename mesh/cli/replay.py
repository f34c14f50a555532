"""`mesh replay`: run a sealed serve again and say whether the receipt is true of it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import emit, note, say
from mesh.cli.engines import add_engine_flags, spec_of
from mesh.cli.specs import EngineSpec, VllmSpec
from mesh.cli.starting import start_engine
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import Invalid, SchemaError, Undecidable, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh.replay.replayer import By
    from mesh.replay.verdict import Verdict
    from mesh.schema.disclosure import Disclosure


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="run a sealed serve again and compare",
        description="Runs the serve of a receipt again, on the engine that the flags describe. Exit code 0: Verified; "
        "10: Diverged, or Verified while the disclosed answer is another one; 11: NotReplayable.",
    )
    parser.add_argument("receipt", metavar="RECEIPT", help="the signed receipt, a file or -")
    parser.add_argument("disclosure", metavar="DISCLOSURE", nargs="?", help="what `mesh disclose` wrote")
    parser.add_argument(
        "--grammar",
        metavar="FILE",
        help="the grammar whose digest the request holds, where its answer had a format: `mesh.grammar_text` of the "
        "answer",
    )
    parser.add_argument(
        "--by",
        choices=("auto", "decode"),
        default="auto",
        help="auto: one pass over the disclosed output where the engine can check one, which costs a fraction, and "
        "decoding where that decides nothing; decode: always make the output again",
    )
    add_trust_flag(parser)
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.cli.evidence import read_envelope
    from mesh.cli.words import verdict_words
    from mesh.schema.envelope import RECEIPT_TYPE, verify

    if args.flags and not args.flags[0].startswith("-"):  # a server's flags begin with one
        raise UsageError(
            f"one receipt and one disclosure, and {args.flags[0]!r} is behind them: many are for `mesh audit`"
        )
    spec = spec_of(args)
    if isinstance(spec, VllmSpec):
        spec = replace(spec, margins=True)  # so that a tie can be told from a difference
    trust = read_trust(args.trust)
    envelope = read_envelope(args.receipt)
    with naming(args.receipt):
        sealed = verify(envelope, RECEIPT_TYPE, trust)  # before a model is loaded for nothing
    disclosure = None if args.disclosure is None else read_disclosure(Path(args.disclosure))
    grammar = None if args.grammar is None else read_text(Path(args.grammar))
    note("loading the engine ...")
    verdict = asyncio.run(_replay(envelope, disclosure, trust, spec, grammar, args.by))
    if args.json:
        emit({"receipt_id": sealed.id.text, **verdict.to_json()})
    else:
        say(verdict_words(verdict))
    return verdict.exit_code


def read_disclosure(path: Path) -> Disclosure:
    """Raises OSError, or an Invalid where the file holds no disclosure."""
    from mesh.schema.disclosure import Disclosure
    from mesh.schema.limits import MAX_DISCLOSURE_BYTES

    with path.open("rb") as file:
        data = file.read(MAX_DISCLOSURE_BYTES + 1)
    if len(data) > MAX_DISCLOSURE_BYTES:
        raise SchemaError(f"{path}: over {MAX_DISCLOSURE_BYTES} bytes")
    with naming(str(path)):
        return Disclosure.from_bytes(data)


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not valid utf-8") from None


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Say of what is wrong with a file's bytes which file it was."""
    try:
        yield
    except (Invalid, Undecidable) as e:
        raise type(e)(f"{source}: {e}") from None


async def _replay(
    envelope: bytes,
    disclosure: Disclosure | None,
    trust: Collection[bytes],
    spec: EngineSpec,
    grammar: str | None,
    by: By,
) -> Verdict:
    from mesh.engine.grammars import GrammarEngine
    from mesh.replay.replayer import replay

    engine = await start_engine(spec)
    try:
        if grammar is not None:
            if not isinstance(engine, GrammarEngine):
                raise UsageError("--grammar: this engine follows none")
            engine.learn(grammar)
        return await replay(envelope, disclosure, engine, trust, by=by)
    finally:
        await engine.close()
