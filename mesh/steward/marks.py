"""A steward's checkpoints: how far its ledger reaches, and what its meters counted by then."""

from __future__ import annotations

from mesh.ledger import Position
from mesh.meter.metering import EpochTotals
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import Sealed, SigningKey, seal
from mesh.schema.receipt import VERSION


class Marks:
    """`count` is the number of receipts that there are at first."""

    def __init__(self, key: SigningKey, count: int) -> None:
        self._key = key
        self._epoch: bytes | None = None
        self._epoch_seq = self._checkpointed = count

    def signed(self, position: Position, totals: EpochTotals, at_ns: int) -> Sealed:
        """To be called where the meters' books and the receipts agree: between two seals, on the thread that writes
        them."""
        if totals.epoch != self._epoch:
            # no receipt of the new epoch can be older than the last checkpoint of the old one
            self._epoch, self._epoch_seq = totals.epoch, self._checkpointed
        self._checkpointed = position.seq
        return seal(
            Checkpoint.of(
                v=VERSION,
                steward=self._key.public,
                at_ns=at_ns,
                count=position.seq,
                head=position.prev,
                domains=list(totals.domains),
                epoch=totals.epoch if totals.domains else None,
                epoch_seq=self._epoch_seq if totals.domains else None,
            ),
            self._key,
        )
