"""Everything of an audit but the replays: each envelope is checked once, counted, and put in its place.

A census takes envelopes one by one, from any number of sources and stewards, in any order, and keeps what it needs to
say at the end what is missing, what is there twice, whether the signed counts and heads are true, and whether the
energy adds up. It does no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mesh.errors import Invalid, LedgerCorrupt, SequenceError, StructureError, Undecidable
from mesh.replay.conservation import Books, EpochSum, Uncovered
from mesh.replay.facts import EngineFacts
from mesh.replay.holding import Holding, Numbers
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import verify_statement
from mesh.schema.ids import ContentId, steward_text
from mesh.schema.limits import MAX_ENVELOPE_BYTES
from mesh.schema.outcome import FINISHES
from mesh.schema.receipt import Receipt

LISTED_FAULTS = 200  # each kind is counted to the end; a hostile archive may be wrong a million times
_COMPLETE = ("stop", "length")
INCOMPLETE = tuple(finish for finish in FINISHES if finish not in _COMPLETE)

# What is wrong, by the word that a report has for it.
FaultKind = Literal["envelope", "sequence", "order", "ledger", "checkpoint", "energy", "head", "disclosure"]


@dataclass(frozen=True, slots=True)
class AuditFault:
    """`code` is the stable word of the error, `where` the source that it was found in."""

    kind: FaultKind
    code: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Place:
    """What a source says of a receipt beside its envelope: a ledger's columns, or the number in an export's name."""

    seq: int | None = None
    receipt_id: bytes | None = None
    serve_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One place that receipts come from. `partial`: a selection, in which gaps say nothing. `whole`: a ledger, which
    has to hold its steward's first receipt too. `ordered`: one in which receipts have to come one after the other."""

    label: str
    partial: bool = False
    whole: bool = False
    ordered: bool = False


class Given:
    """What came of one source: how many envelopes, and which numbers of each steward."""

    __slots__ = ("numbers", "source", "statements")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.statements = 0
        self.numbers: dict[bytes, Numbers] = {}


class Tally:
    """The serves of one steward, counted. `models` has each model's serves by finish; times are Unix nanoseconds, None
    where there was no serve."""

    __slots__ = ("bases", "finishes", "first_ns", "last_ns", "models", "uj")

    def __init__(self) -> None:
        self.finishes: Counter[str] = Counter()
        self.bases: Counter[str] = Counter()
        self.models: dict[str, Counter[str]] = {}
        self.uj = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def add(self, receipt: Receipt) -> None:
        finish, energy = receipt.outcome.finish, receipt.energy
        self.finishes[finish] += 1
        self.bases[energy.basis] += 1
        self.uj += energy.uj or 0
        model = self.models.get(receipt.engine.recipe_id)
        if model is None:
            model = self.models[receipt.engine.recipe_id] = Counter()
        model[finish] += 1
        ended = receipt.ended_ns
        if self.first_ns is None or ended < self.first_ns:
            self.first_ns = ended
        if self.last_ns is None or ended > self.last_ns:
            self.last_ns = ended

    @property
    def serves(self) -> int:
        return self.finishes.total()

    @property
    def incomplete(self) -> int:
        """Serves that did not come to their end: interrupted, cancelled, failed or refused."""
        return sum(self.finishes[finish] for finish in INCOMPLETE)


class Census:
    """`trust` are the stewards' keys."""

    def __init__(self, trust: Collection[bytes]) -> None:
        self.trust = trust
        self.good = 0
        self.checkpoints = 0
        self.repeated = 0
        self.refused: Counter[str] = Counter()
        self.undecided: Counter[str] = Counter()
        self.faults: list[AuditFault] = []
        self.undecided_listed: list[AuditFault] = []
        self.holdings: dict[bytes, Holding] = {}
        self.tallies: dict[bytes, Tally] = {}
        self.groups: list[EngineFacts] = []
        self.sums: list[EpochSum] = []
        self.missing: dict[bytes, list[tuple[int, int]]] = {}
        self.sources: list[Given] = []
        self._books = Books()
        self._group_of: dict[tuple[bytes | str | None, ...], int] = {}
        self._counted: dict[bytes, dict[int, Checkpoint]] = {}
        self._seen_checkpoints: set[bytes] = set()

    def fault(self, kind: FaultKind, error: Exception, where: str) -> None:
        """Count what is wrong, and keep the first of it."""
        code = getattr(error, "code", kind)
        self.refused[kind] += 1
        if len(self.faults) < LISTED_FAULTS:
            # whoever read a file may have named it already
            self.faults.append(AuditFault(kind, code, where, str(error).removeprefix(f"{where}: ")))

    def undecide(self, error: Undecidable, where: str) -> None:
        self.undecided[error.code] += 1
        if len(self.undecided_listed) < LISTED_FAULTS:
            self.undecided_listed.append(AuditFault("envelope", error.code, where, str(error)))

    def open(self, source: Source) -> None:
        """What is taken from now on comes from `source`."""
        self.sources.append(Given(source))

    def take(self, envelope: bytes, where: str, place: Place | None = None) -> None:
        """Check one envelope, receipt or checkpoint. Raises nothing: what is wrong with it is in the findings."""
        given = self.sources[-1]
        given.statements += 1
        try:
            if type(envelope) is not bytes or len(envelope) > MAX_ENVELOPE_BYTES:
                raise StructureError(f"envelope: expected at most {MAX_ENVELOPE_BYTES} bytes")
            sealed = verify_statement(envelope, self.trust)
        except Undecidable as e:
            self.undecide(e, where)
            return
        except Invalid as e:
            self.fault("envelope", e, where)
            return
        value = sealed.value
        if isinstance(value, Receipt):
            self._take_receipt(given, value, sealed.id, where, place)
        else:
            self._take_checkpoint(given, value, sealed.id, where)

    def _take_receipt(
        self, given: Given, receipt: Receipt, receipt_id: ContentId, where: str, place: Place | None
    ) -> None:
        steward, seq = receipt.steward, receipt.seq
        if place is not None and (fault := _misplaced(place, receipt, receipt_id)) is not None:
            self.fault("order" if place.receipt_id is None else "ledger", fault, where)
        numbers = given.numbers.get(steward)
        if numbers is None:
            numbers = given.numbers[steward] = Numbers()
        in_order = seq > numbers.last
        if not numbers.add(seq):
            # before it is known whether the ids differ: that is a fork, and the holding says so
            if self._holding(steward).id_at(seq) == receipt_id:
                self.fault("sequence", SequenceError(
                    f"duplicate: receipt {receipt_id} of {steward_text(steward)} (seq {seq}) is there twice"
                ), where)  # fmt: skip
        elif given.source.ordered and not in_order:
            self.fault("order", SequenceError(
                f"receipt {receipt_id} of {steward_text(steward)} (seq {seq}) comes after seq {numbers.last}"
            ), where)  # fmt: skip
        try:
            new = self._holding(steward).add(receipt, receipt_id, self._group(receipt))
        except SequenceError as e:
            self.fault("sequence", e, where)
            new = not str(e).startswith("fork")
        if not new:
            self.repeated += 1
            return
        self.good += 1
        tally = self.tallies.get(steward)
        if tally is None:
            tally = self.tallies[steward] = Tally()
        tally.add(receipt)
        self._books.add(receipt)

    def _take_checkpoint(self, given: Given, checkpoint: Checkpoint, checkpoint_id: ContentId, where: str) -> None:
        given.numbers.setdefault(checkpoint.steward, Numbers())
        if checkpoint_id in self._seen_checkpoints:
            self.repeated += 1
            return
        self._seen_checkpoints.add(checkpoint_id)
        self.checkpoints += 1
        self._holding(checkpoint.steward)
        self._books.add_checkpoint(checkpoint)
        heads = self._counted.setdefault(checkpoint.steward, {})
        other = heads.setdefault(checkpoint.count, checkpoint)
        if other.head != checkpoint.head:
            self.fault("checkpoint", SequenceError(
                f"fork: two checkpoints of {steward_text(checkpoint.steward)} count {checkpoint.count} receipts and "
                f"name {_head_text(other.head)} and {_head_text(checkpoint.head)} as the last"
            ), where)  # fmt: skip

    def _holding(self, steward: bytes) -> Holding:
        holding = self.holdings.get(steward)
        if holding is None:
            holding = self.holdings[steward] = Holding(steward)
        return holding

    def _group(self, receipt: Receipt) -> int:
        """The number of what ran: receipts of one group can be replayed by one engine."""
        block = receipt.engine
        key = (
            block.backend_id, block.recipe_id, block.weights_digest, block.blueprint_id, block.runtime_recipe_digest,
            block.settings_digest,
        )  # fmt: skip
        number = self._group_of.get(key)
        if number is None:
            number = self._group_of[key] = len(self.groups)
            self.groups.append(EngineFacts.of_block(block))
        return number

    def finish(self) -> None:
        """Everything is in: hold it against itself."""
        for given in self.sources:
            if not given.statements:
                self.undecide(Undecidable("holds no receipt"), given.source.label)
        for steward in sorted(self.holdings):
            holding, where = self.holdings[steward], self._where(steward)
            for error in holding.faults():
                self.fault("sequence", error, where)
            self._check_counts(steward, holding, where)
            self._check_gaps(steward, holding, where)
        self.sums, wrong = self._books.sums(self.holdings)
        for one in wrong:
            self.fault("energy", SequenceError(one.message), self._where(one.steward))

    def _check_counts(self, steward: bytes, holding: Holding, where: str) -> None:
        for count, checkpoint in sorted(self._counted.get(steward, {}).items()):
            if not count:
                continue
            found = holding.id_at(count - 1)
            if found is not None and found != checkpoint.head:
                self.fault("checkpoint", SequenceError(
                    f"a checkpoint of {steward_text(steward)} names {_head_text(checkpoint.head)} as seq {count - 1}, "
                    f"got {found}"
                ), where)  # fmt: skip

    def _check_gaps(self, steward: bytes, holding: Holding, where: str) -> None:
        """Whatever lies between the first receipt at hand and the last that is at hand or counted has to be there, and
        the beginning too where a ledger was given."""
        givers = [given.source for given in self.sources if steward in given.numbers]
        counted = max(self._counted.get(steward, {}), default=0)
        whole = any(source.whole for source in givers)
        first = 0 if whole or holding.first is None else holding.first
        end = max(counted, 0 if holding.last is None else holding.last + 1)
        missing = list(holding.gaps(0, end))
        if missing:
            self.missing[steward] = missing
        if all(source.partial for source in givers):
            return
        for start, last in missing:
            start = max(start, first)
            if start > last:
                continue
            what = f"seq {start} is" if start == last else f"seq {start} to {last} are"
            why = f", and a checkpoint counts {counted}" if counted > start and last >= (holding.last or 0) else ""
            self.fault("sequence", SequenceError(f"gap: {what} missing of {steward_text(steward)}{why}"), where)

    def _where(self, steward: bytes) -> str:
        """The sources that had something of this steward."""
        return ", ".join(given.source.label for given in self.sources if steward in given.numbers)

    def uncovered(self) -> dict[bytes, Uncovered]:
        return self._books.uncovered()

    def counted(self, steward: bytes) -> int | None:
        """How many receipts the furthest checkpoint of a steward counts."""
        return max(self._counted.get(steward, {}), default=None)


def _misplaced(place: Place, receipt: Receipt, receipt_id: ContentId) -> Exception | None:
    if place.receipt_id is not None:
        if (place.seq, place.receipt_id, place.serve_id) != (receipt.seq, receipt_id, receipt.serve_id):
            return LedgerCorrupt("kept under another seq, id or serve than it is signed for")
    elif place.seq is not None and place.seq != receipt.seq:
        return SequenceError(f"stands in the place of seq {place.seq}, and is signed for seq {receipt.seq}")
    return None


def _head_text(head: bytes | None) -> str:
    return "none" if head is None else ContentId(head).text
