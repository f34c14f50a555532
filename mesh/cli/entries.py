"""Rows of a ledger as the receipts that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.ledger.values import Entry
    from mesh.schema.envelope import Sealed


def opened(entry: Entry, steward: bytes) -> Sealed:
    """The receipt in a ledger's row, checked against the ledger's own key. Raises EnvelopeError, UntrustedSteward."""
    from mesh.schema.envelope import RECEIPT_TYPE, verify

    return verify(entry.envelope, RECEIPT_TYPE, (steward,))
