"""`mesh verify`: check receipts against the keys that the caller trusts, without a ledger, a network or an engine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mesh.cli.console import counted, emit, note, say
from mesh.cli.exits import ACCEPTED, REFUSED, UNDECIDED, error_code
from mesh.cli.trust import add_trust_flag, read_trust
from mesh.errors import Invalid, LedgerCorrupt, MeshError, SequenceError, StructureError, Undecidable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mesh.cli.chains import Chains
    from mesh.cli.evidence import Piece, Source
    from mesh.schema.envelope import Sealed

# Above this, one line per receipt is no longer something a person reads.
MAX_LISTED = 20


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="check receipts against keys you trust",
        description="Checks signed receipts, and whether those given follow one another. Exit code 0: all good; 10: "
        "one is wrong; 11: one is of a steward that is not trusted.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a receipt (.cbor), an archive or directory made by `mesh receipts export`, a state directory, or -",
    )
    add_trust_flag(parser)
    parser.add_argument("--complete", action="store_true", help="also refuse where a receipt is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from mesh.cli.evidence import open_source

    trust = read_trust(args.trust)
    findings = examine((open_source(name) for name in args.files), trust, complete=args.complete)
    if args.json:
        emit(findings.to_json())
    else:
        findings.print()
    return findings.exit_code


@dataclass(frozen=True, slots=True)
class Fault:
    label: str
    error: MeshError

    def to_json(self) -> dict[str, Any]:
        return {"source": self.label, "code": error_code(self.error), "message": str(self.error)}


@dataclass(slots=True)
class Findings:
    """What came of it: how many statements are good, given again, refused, undecided, and the first of each. `whole`
    are the stewards of whom nothing may be missing."""

    chains: Chains
    whole: set[bytes] = field(default_factory=set)
    good: int = 0
    repeated: int = 0
    listed: list[tuple[str, Sealed]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    refused: int = 0
    undecided: int = 0

    def fault(self, label: str, error: MeshError) -> None:
        """Count what is wrong, and keep the first of it: a hostile archive may be wrong a million times."""
        undecided = isinstance(error, Undecidable)
        if (self.undecided if undecided else self.refused) < MAX_LISTED:
            self.faults.append(Fault(label, error))
        if undecided:
            self.undecided += 1
        else:
            self.refused += 1

    @property
    def exit_code(self) -> int:
        if self.refused:
            return REFUSED
        return UNDECIDED if self.undecided else ACCEPTED

    def to_json(self) -> dict[str, Any]:
        from mesh.schema.ids import steward_text
        from mesh.schema.view import sealed_view

        told: dict[str, Any] = {
            "verdict": {ACCEPTED: "good", REFUSED: "refused", UNDECIDED: "undecided"}[self.exit_code],
            "good": self.good,
            "repeated": self.repeated,
            "refused": self.refused,
            "undecided": self.undecided,
            "listed": [{"source": label, **sealed_view(sealed)} for label, sealed in self.listed],
            "faults": [fault.to_json() for fault in self.faults],
            "stewards": [
                {"steward": steward_text(steward), "receipts": count, "first_seq": first, "last_seq": last}
                for steward, (count, first, last) in self.chains.extent().items()
            ],
            "gaps": [
                {"steward": steward_text(gap.steward), "first_seq": gap.first, "last_seq": gap.last}
                for gap in self.chains.gaps()
            ],
        }
        if self.faults:
            first = next((f for f in self.faults if not isinstance(f.error, Undecidable)), self.faults[0])
            told["error"] = {"code": error_code(first.error), "message": str(first.error)}
        return told

    def print(self) -> None:
        from mesh.cli.words import sealed_line, sealed_words
        from mesh.schema.ids import steward_text

        if self.good == 1 and not self.faults:
            say(f"good: {self.listed[0][0]}")
            say(sealed_words(self.listed[0][1]))
        elif self.good <= MAX_LISTED:
            for label, sealed in self.listed:
                say(f"good: {label}: {sealed_line(sealed)}")
        if self.good != 1:
            for steward, (count, first, last) in self.chains.extent().items():
                say(f"{counted(count, 'good receipt')} of {steward_text(steward)}, seq {first} to {last}")
        if self.repeated:
            say(f"{self.repeated} given more than once")
        if self.good != 1:
            for gap in self.chains.gaps():
                say(f"not given: {gap}")
        for fault in self.faults:
            word = "cannot be decided" if isinstance(fault.error, Undecidable) else "refused"
            message = str(fault.error).removeprefix(f"{fault.label}: ")
            note(f"{word}: {fault.label}: {error_code(fault.error)}: {message}")
        more = self.refused + self.undecided - len(self.faults)
        if more:
            note(f"and {more} more")


def examine(sources: Iterable[Source], trust: Collection[bytes], *, complete: bool = False) -> Findings:
    """Check every envelope, then whether they follow one another. Raises OSError or LedgerError where a source cannot
    be read; what is wrong with what was read is in the findings."""
    from mesh.cli.chains import Chains

    findings = Findings(Chains())
    names = []
    for source in sources:
        names.append(source.label)
        before = findings.good + findings.repeated + findings.refused + findings.undecided
        try:
            for piece in source.pieces:
                _take(findings, piece, trust, whole=source.whole or complete)
        except (StructureError, LedgerCorrupt) as e:
            findings.fault(source.label, e)
        if findings.good + findings.repeated + findings.refused + findings.undecided == before:
            findings.fault(source.label, Undecidable("holds no receipt"))
    label = ", ".join(names)
    try:
        findings.chains.check_links()
    except SequenceError as e:
        findings.fault(label, e)
    for gap in findings.chains.gaps():
        if gap.steward in findings.whole:
            findings.fault(label, SequenceError(f"gap: {gap}"))
    return findings


def _take(findings: Findings, piece: Piece, trust: Collection[bytes], *, whole: bool) -> None:
    from mesh.schema.envelope import verify_statement
    from mesh.schema.receipt import Receipt

    try:
        if type(piece.envelope) is not bytes:
            raise StructureError("the ledger holds something else than bytes")
        piece.check_size()
        sealed = verify_statement(piece.envelope, trust)
        value = sealed.value
        if whole:
            findings.whole.add(value.steward)
        if isinstance(value, Receipt):
            if piece.row is not None and piece.row != (value.seq, sealed.id, value.serve_id):
                raise LedgerCorrupt("the ledger keeps it under another seq, id or serve than it is signed for")
            if not findings.chains.add(value, sealed.id):
                findings.repeated += 1
                return
        else:
            findings.chains.add_checkpoint(value)
    except (Invalid, Undecidable, LedgerCorrupt) as e:
        findings.fault(piece.label, e)
        return
    findings.good += 1
    if len(findings.listed) < MAX_LISTED:
        findings.listed.append((piece.label, sealed))
