"""Receipts from any number of places, as far as they have to follow one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mesh.errors import SequenceError
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Gap:
    """Receipts `first` to `last` of a steward that are known to exist and are not at hand."""

    steward: bytes
    first: int
    last: int

    def __str__(self) -> str:
        what = f"seq {self.first} is" if self.first == self.last else f"seq {self.first} to {self.last} are"
        return f"{what} missing of {steward_text(self.steward)}"


class Chains:
    """Holds an id and its `prev` of each receipt, not the receipts: a ledger of millions passes through."""

    def __init__(self) -> None:
        self._receipts: dict[bytes, dict[int, tuple[ContentId, bytes | None]]] = {}
        self._serves: dict[tuple[bytes, bytes], ContentId] = {}
        self._counted: dict[bytes, int] = {}
        self._heads: dict[tuple[bytes, int], ContentId] = {}

    def add(self, receipt: Receipt, receipt_id: ContentId) -> bool:
        """Take one receipt in; False where it is at hand already. Raises SequenceError where the steward signed another
        one for its place (two copies of the key are at work) or for its serve."""
        theirs = self._receipts.setdefault(receipt.steward, {})
        other = theirs.get(receipt.seq)
        if other is not None and other[0] != receipt_id:
            raise SequenceError(
                f"fork: {steward_text(receipt.steward)} signed two receipts with seq {receipt.seq}, {other[0]} and "
                f"{receipt_id}: its key is at work in two places, or was"
            )
        if other is not None:
            return False
        first = self._serves.setdefault((receipt.steward, receipt.serve_id), receipt_id)
        if first != receipt_id:
            raise SequenceError(f"serve {serve_id_text(receipt.serve_id)} has two receipts, {first} and {receipt_id}")
        theirs[receipt.seq] = (receipt_id, receipt.prev)
        return True

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take in how many receipts there are and which is the last. Raises SequenceError where another checkpoint of
        the steward named another one."""
        if checkpoint.head is None:
            return
        before = self._counted.get(checkpoint.steward, 0)
        self._counted[checkpoint.steward] = max(before, checkpoint.count)
        head = ContentId(checkpoint.head)
        other = self._heads.setdefault((checkpoint.steward, checkpoint.count - 1), head)
        if other != head:
            raise SequenceError(
                f"fork: two checkpoints of {steward_text(checkpoint.steward)} count {checkpoint.count} receipts and "
                f"name {other} and {head} as the last"
            )

    def check_links(self) -> None:
        """Raises SequenceError where a receipt, or a checkpoint, names another one than is at hand."""
        for steward, receipts in self._receipts.items():
            for seq, (receipt_id, prev) in receipts.items():
                before = receipts.get(seq - 1)
                if before is not None and before[0] != prev:
                    got = "none" if prev is None else ContentId(prev).text
                    raise SequenceError(
                        f"prev: receipt {receipt_id} of {steward_text(steward)} (seq {seq}) names {got}, "
                        f"expected {before[0]}"
                    )
        for (steward, seq), head in self._heads.items():
            last = self._receipts.get(steward, {}).get(seq)
            if last is not None and last[0] != head:
                raise SequenceError(f"checkpoint of {steward_text(steward)}: names {head} as seq {seq}, got {last[0]}")

    def gaps(self) -> Iterator[Gap]:
        """What is missing of each steward from its first receipt on, up to the last one that is at hand or that a
        checkpoint counts."""
        for steward in sorted(self._receipts.keys() | self._counted.keys()):
            expected = 0
            for seq in sorted(self._receipts.get(steward, {})):
                if seq > expected:
                    yield Gap(steward, expected, seq - 1)
                expected = seq + 1
            counted = self._counted.get(steward, 0)
            if counted > expected:
                yield Gap(steward, expected, counted - 1)

    def extent(self) -> dict[bytes, tuple[int, int, int]]:
        """Per steward: how many receipts are at hand, the first and the last `seq`."""
        return {steward: (len(theirs), min(theirs), max(theirs)) for steward, theirs in self._receipts.items()}
