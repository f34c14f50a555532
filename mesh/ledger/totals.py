"""What serves draw from the totals of grants: reserved with the intent and settled with the seal, each in the
transaction of what it belongs to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from mesh.grant.caveats import TOTAL_TOKENS, TOTAL_UJ
from mesh.grant.decision import beyond
from mesh.grant.draw import Draw
from mesh.ledger.values import Total
from mesh.schema.limits import MAX_UINT
from mesh.schema.receipt import Receipt


def reserve(db: sqlite3.Connection, serve_id: bytes, draws: Iterable[Draw]) -> None:
    """Put the worst case of a serve aside. Raises GrantRefused where a total does not bear it."""
    for draw in draws:
        total = _total(db, draw.block_id, draw.caveat)
        refusal = beyond(draw, total.used)
        if refusal is not None:
            raise refusal.error()
        db.execute("INSERT INTO draws VALUES (?, ?, ?, ?)", (serve_id, draw.block_id, draw.caveat, draw.amount))
        _put(db, draw.block_id, draw.caveat, Total(total.settled, total.estimated, total.reserved + draw.amount))


def settle(db: sqlite3.Connection, serve_id: bytes, receipt: Receipt) -> None:
    """Put what the receipt says in the place of what was reserved, or, where it says nothing, keep that."""
    drawn = db.execute("SELECT block_id, caveat, amount FROM draws WHERE serve_id = ?", (serve_id,)).fetchall()
    for block_id, caveat, amount in drawn:
        total = _total(db, block_id, caveat)
        used = used_of(receipt, caveat)
        settled, estimated = (0, amount) if used is None else (used, 0)
        _put(
            db, block_id, caveat,
            Total(total.settled + settled, total.estimated + estimated, total.reserved - amount),
        )  # fmt: skip
    if drawn:
        db.execute("DELETE FROM draws WHERE serve_id = ?", (serve_id,))


def used_of(receipt: Receipt, caveat: str) -> int | None:
    """What a serve used, in the unit of the total; None where its receipt does not say."""
    outcome = receipt.outcome
    if caveat == TOTAL_UJ:
        return receipt.energy.uj
    if caveat == TOTAL_TOKENS and outcome.tokens_in is not None and outcome.tokens_out is not None:
        return outcome.tokens_in + outcome.tokens_out
    return None


def _total(db: sqlite3.Connection, block_id: bytes, caveat: str) -> Total:
    row = db.execute(
        "SELECT settled, estimated, reserved FROM totals WHERE block_id = ? AND caveat = ?", (block_id, caveat)
    ).fetchone()
    return Total() if row is None else Total(*row)


def _put(db: sqlite3.Connection, block_id: bytes, caveat: str, total: Total) -> None:
    # a meter may say anything; SQLite's integers end where the format's do
    counts = [min(count, MAX_UINT) for count in (total.settled, total.estimated, total.reserved)]
    db.execute("INSERT OR REPLACE INTO totals VALUES (?, ?, ?, ?, ?)", (block_id, caveat, *counts))
