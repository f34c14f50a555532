"""The pieces of work that a transaction is made of: one function per thing that can be written."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from mesh.errors import Conflict, LedgerError, SchemaError
from mesh.ledger.totals import reserve, settle
from mesh.ledger.transaction import Transaction
from mesh.ledger.values import Intent, Kept, Position
from mesh.schema.envelope import Sealed
from mesh.schema.ids import ContentId, serve_id_text
from mesh.schema.limits import MAX_SETTINGS_BYTES


def intent_work(intent: Intent) -> Callable[[Transaction], bytes | None]:
    serve_id_text(intent.serve_id)  # refuses another length
    digest = _settings_digest(intent.settings)
    route = None if intent.route is None else ContentId.of_canonical("route", intent.route)
    key = intent.idempotency

    row = (
        intent.serve_id, intent.caller, intent.request, intent.engine, digest, intent.recipe_id,
        intent.started_ns, None if key is None else key.key, intent.grant_id,
    )  # fmt: skip

    def work(transaction: Transaction) -> bytes | None:
        if key is not None:
            first = _first_serve(transaction, intent.caller, key.key, key.body_mac)
            if first is not None and first != key.after:
                return first
        transaction.add_settings(digest, intent.settings)
        if route is not None:
            transaction.db.execute("INSERT OR IGNORE INTO routes VALUES (?, ?)", (route, intent.route))
        transaction.add_intent(intent.serve_id, row, granted=intent.grant_id is not None)
        if key is not None:
            transaction.db.execute(
                "INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?)",
                (intent.caller, key.key, key.body_mac, intent.serve_id),
            )
        if intent.draws:
            reserve(transaction.db, intent.serve_id, intent.draws)
        return None

    return work


# An engine's intents all have the same.
@lru_cache(maxsize=64)
def _settings_digest(document: bytes) -> ContentId:
    if len(document) > MAX_SETTINGS_BYTES:
        raise SchemaError(f"settings document: {len(document)} bytes, at most {MAX_SETTINGS_BYTES}")
    return ContentId.of_canonical("settings", document)


def _first_serve(transaction: Transaction, caller: str, key: str, body_mac: bytes) -> bytes | None:
    row = transaction.db.execute(
        """
        SELECT body_mac, serve_id, EXISTS (SELECT 1 FROM receipts AS r WHERE r.serve_id = k.serve_id)
        FROM idempotency AS k WHERE caller = ? AND key = ?""",
        (caller, key),
    ).fetchone()
    if row is None:
        return None
    first_mac, serve_id, sealed = row
    if first_mac != body_mac:
        raise Conflict(f"idempotency key {key[:80]!r}: was used for another request body", code="idempotency_mismatch")
    if not sealed:
        raise Conflict(
            f"idempotency key {key[:80]!r}: serve {serve_id_text(serve_id)} is still in flight",
            code="idempotency_in_flight",
        )
    return bytes(serve_id)


def seal_work(
    serve_id: bytes, make: Callable[[Position], Sealed], kept: Kept | None
) -> Callable[[Transaction], Sealed]:
    def work(transaction: Transaction) -> Sealed:
        sealed = _made(transaction, serve_id, make) if transaction.may_gather(serve_id) else None
        transaction.sealed(serve_id)
        if sealed is not None and sealed.value.grant_id is None and kept is None:
            receipt_id = sealed.id
            transaction.add_receipt((transaction.count, receipt_id, serve_id, sealed.envelope))
            transaction.count, transaction.head = transaction.count + 1, receipt_id
            return sealed
        db = transaction.db
        intent = db.execute("SELECT caller, request, grant_id FROM intents WHERE serve_id = ?", (serve_id,)).fetchone()
        if intent is None:
            raise LedgerError(f"serve {serve_id_text(serve_id)}: has no open intent to seal")
        if sealed is None:
            sealed = _made(transaction, serve_id, make)
        if sealed.value.grant_id != intent[2]:
            raise LedgerError(f"serve {serve_id_text(serve_id)}: receipt made names another grant than its intent")
        receipt_id = sealed.id
        db.execute(
            "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?)",
            (transaction.count, receipt_id, serve_id, intent[0], sealed.envelope, intent[1]),
        )
        db.execute("DELETE FROM intents WHERE serve_id = ?", (serve_id,))
        if intent[2] is not None:  # without a grant nothing was reserved
            settle(db, serve_id, sealed.value)
        if kept is not None:
            db.execute(
                "INSERT INTO kept VALUES (?, ?, ?, ?, ?)",
                (serve_id, kept.payload, kept.output, kept.prompt, kept.until_ns),
            )
        transaction.count, transaction.head = transaction.count + 1, receipt_id
        return sealed

    return work


def _made(transaction: Transaction, serve_id: bytes, make: Callable[[Position], Sealed]) -> Sealed:
    """The receipt for the next place."""
    position = Position(transaction.count, transaction.head)
    sealed = make(position)
    made = (sealed.value.serve_id, sealed.value.seq, sealed.value.prev)
    if made != (serve_id, position.seq, position.prev):
        raise LedgerError(f"serve {serve_id_text(serve_id)}: receipt made is not the one for seq {position.seq}")
    return sealed


def checkpoint_work(make: Callable[[Position], Sealed]) -> Callable[[Transaction], Sealed]:
    def work(transaction: Transaction) -> Sealed:
        position = Position(transaction.count, transaction.head)
        sealed = make(position)
        if (sealed.value.count, sealed.value.head) != (position.seq, position.prev):
            raise LedgerError(f"checkpoint made counts {sealed.value.count} receipts, expected {position.seq}")
        transaction.db.execute(
            "INSERT INTO checkpoints (count, envelope) VALUES (?, ?)", (position.seq, sealed.envelope)
        )
        return sealed

    return work


def purge_work(transaction: Transaction, now_ns: int) -> int:
    return transaction.db.execute("DELETE FROM kept WHERE until_ns <= ?", (now_ns,)).rowcount
