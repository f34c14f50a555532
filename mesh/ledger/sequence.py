"""Whether receipts follow one another: what anyone who holds a steward's receipts can check without the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh.errors import SequenceError
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.receipt import Receipt


def check_sequence(entries: Iterable[tuple[Receipt, ContentId]], *, first_seq: int = 0) -> None:
    """Check that the receipts, in any order and of any number of stewards, are each steward's whole sequence from
    `first_seq` to its last one given. Raises SequenceError for the first of these that holds:

    1. fork: one steward signed two receipts with one `seq`. Two copies of its key have been at work.
    2. duplicate: a receipt is there twice, or one serve has two.
    3. gap: a receipt is missing.
    4. prev: a receipt does not name the one before it.
    """
    stewards: dict[bytes, dict[int, tuple[ContentId, bytes | None]]] = {}
    serves: set[tuple[bytes, bytes]] = set()
    duplicate: str | None = None
    for receipt, receipt_id in entries:
        name, seq = steward_text(receipt.steward), receipt.seq
        theirs = stewards.setdefault(receipt.steward, {})
        other = theirs.get(seq)
        if other is not None and other[0] != receipt_id:
            raise SequenceError(f"fork: {name} signed two receipts with seq {seq}, {other[0]} and {receipt_id}")
        if other is not None:
            duplicate = duplicate or f"duplicate: receipt {receipt_id} of {name} (seq {seq}) is there twice"
        elif (receipt.steward, receipt.serve_id) in serves:
            duplicate = duplicate or f"duplicate: serve {serve_id_text(receipt.serve_id)} of {name} has two receipts"
        serves.add((receipt.steward, receipt.serve_id))
        theirs[seq] = (receipt_id, receipt.prev)
    if duplicate is not None:
        raise SequenceError(duplicate)
    for steward in sorted(stewards):
        _check_one(steward_text(steward), stewards[steward], first_seq)


def check_run(entries: Sequence[tuple[Receipt, ContentId]], checkpoints: Iterable[Checkpoint] = ()) -> None:
    """Check a run of one steward's receipts, which may begin at any `seq`, in the order in which they are given: what
    SPEC.md, section Sequence, asks of a verifier. Each checkpoint must lie within the run's end and name the receipt
    that is there. Raises SequenceError."""
    checkpoints = list(checkpoints)
    stewards = {receipt.steward for receipt, _ in entries} | {checkpoint.steward for checkpoint in checkpoints}
    if len(stewards) > 1:
        raise SequenceError(f"stewards: {', '.join(map(steward_text, sorted(stewards)))} in one run")
    seqs = [receipt.seq for receipt, _ in entries]
    check_sequence(entries, first_seq=min(seqs, default=0))
    if seqs != sorted(seqs):
        raise SequenceError("order: the receipts are all there, but not one after the other")
    ids = {receipt.seq: receipt_id for receipt, receipt_id in entries}
    end = max(seqs, default=-1) + 1
    for checkpoint in checkpoints:
        if checkpoint.count > end:
            raise SequenceError(f"checkpoint: counts {checkpoint.count} receipts, the run ends with the {end}th")
        found = ids.get(checkpoint.count - 1)
        if found is not None and found != checkpoint.head:
            head = "none" if checkpoint.head is None else ContentId(checkpoint.head).text
            raise SequenceError(f"checkpoint: names {head} as seq {checkpoint.count - 1}, got {found}")


def _check_one(name: str, receipts: dict[int, tuple[ContentId, bytes | None]], first_seq: int) -> None:
    before: ContentId | None = None
    expected = first_seq
    for seq in sorted(receipts):
        if seq < expected:
            raise SequenceError(f"gap: the receipts of {name} start at seq {seq}, expected {first_seq}")
        if seq != expected:
            missing = f"seq {expected}" if seq == expected + 1 else f"seq {expected} to {seq - 1}"
            raise SequenceError(f"gap: of {name} {missing} is missing, expected {expected}, got {seq}")
        receipt_id, prev = receipts[seq]
        # the first of a later stretch names a receipt that is not at hand
        if (before is not None or seq == 0) and prev != before:
            got = "none" if prev is None else str(ContentId(prev))
            raise SequenceError(f"prev: receipt {receipt_id} of {name} (seq {seq}) names {got}, expected {before}")
        before, expected = receipt_id, seq + 1
