"""The registry of recipes as the ledger keeps it: one row for each fingerprint, with what certified it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

from mesh.errors import Invalid, LedgerCorrupt
from mesh.identity.document import parse_document
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.fields import check_object
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.recipe import LABELS
from mesh.identity.registry import RecipeStatus, certified, fingerprint_of
from mesh.identity.shard import ShardIdentity
from mesh.ledger.transaction import Transaction

COLUMNS = "model_artifact_digest, runtime_recipe_digest, labels, evidence"


def register_work(identity: ShardIdentity | CompatibilityFingerprint) -> Callable[[Transaction], RecipeStatus]:
    fingerprint = fingerprint_of(identity)

    def work(transaction: Transaction) -> RecipeStatus:
        _put(transaction.db, "IGNORE", RecipeStatus("dark", fingerprint))
        row = transaction.db.execute(
            f"SELECT {COLUMNS} FROM recipes WHERE model_artifact_digest = ? AND runtime_recipe_digest = ?",  # noqa: S608
            tuple(map(bytes.fromhex, fingerprint.key)),
        ).fetchone()
        return status_of(row)

    return work


def certify_work(
    identity: ShardIdentity | CompatibilityFingerprint, evidence: ForwardEvidence
) -> Callable[[Transaction], RecipeStatus]:
    status = certified(identity, evidence)

    def work(transaction: Transaction) -> RecipeStatus:
        _put(transaction.db, "REPLACE", status)
        return status

    return work


def status_of(row: tuple[Any, ...]) -> RecipeStatus:
    """Of a row of COLUMNS. Raises LedgerCorrupt where it is none, or where its evidence certifies nothing: what is kept
    is held to the same rules as what comes in."""
    artifact, recipe, labels, evidence = row
    # a damaged row holds what its columns do not admit
    if not all(isinstance(value, bytes) for value in (artifact, recipe)) or not isinstance(labels, str):
        raise LedgerCorrupt("ledger: a recipe: a column is of another kind, expected two digests and labels")
    if not isinstance(evidence, str | None):
        raise LedgerCorrupt(f"ledger: recipe {artifact.hex()}: its evidence is of another kind, expected text")
    try:
        told = check_object(parse_document(labels.encode(), "labels"), "labels", LABELS)
        fingerprint = CompatibilityFingerprint(artifact.hex(), recipe.hex(), **told)
        if evidence is None:
            return RecipeStatus("dark", fingerprint)
        seen = ForwardEvidence.from_json(evidence.encode())
    except Invalid as e:
        raise LedgerCorrupt(f"ledger: recipe {artifact.hex()}: {e}") from None
    if (rejection := seen.rejection()) is not None:
        raise LedgerCorrupt(f"ledger: recipe {artifact.hex()}: its evidence certifies nothing: {rejection.detail}")
    return RecipeStatus("certified", fingerprint, seen)


def _put(db: sqlite3.Connection, otherwise: str, status: RecipeStatus) -> None:
    told = status.fingerprint.to_map()
    digests = [bytes.fromhex(told.pop(name)) for name in ("model_artifact_digest", "runtime_recipe_digest")]
    evidence = None if status.evidence is None else json.dumps(status.evidence.to_map())
    db.execute(
        f"INSERT OR {otherwise} INTO recipes ({COLUMNS}) VALUES (?, ?, ?, ?)",  # noqa: S608
        (*digests, json.dumps(told), evidence),
    )
