"""Intents, receipts, checkpoints and what is kept of a serve, in one SQLite file per steward."""

from mesh.ledger.blueprints import ServedUnder
from mesh.ledger.ledger import Ledger
from mesh.ledger.reader import LedgerReader
from mesh.ledger.sequence import check_sequence
from mesh.ledger.values import Entry, Idempotency, Intent, Kept, Position, Total

__all__ = [
    "Entry",
    "Idempotency",
    "Intent",
    "Kept",
    "Ledger",
    "LedgerReader",
    "Position",
    "ServedUnder",
    "Total",
    "check_sequence",
]
