"""Which blueprints were served under, as the ledger keeps it: a row for each start, never changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mesh.blueprint.verification import Served
from mesh.ledger.transaction import Transaction

COLUMNS = "lineage, revision, blueprint_id, at_ns, allowed"
HIGHEST = "SELECT revision, blueprint_id FROM blueprints WHERE lineage = ? ORDER BY revision DESC, number DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class ServedUnder:
    """A start under a blueprint, at Unix nanoseconds. `allowed` is what the operator allowed that would have been
    refused: `lower-revision` or `other-body`; None where nothing was."""

    lineage: bytes
    revision: int
    blueprint_id: bytes
    at_ns: int
    allowed: str | None = None


def served_work(start: ServedUnder) -> Callable[[Transaction], None]:
    values = (start.lineage, start.revision, start.blueprint_id, start.at_ns, start.allowed)

    def work(transaction: Transaction) -> None:
        transaction.db.execute(f"INSERT INTO blueprints ({COLUMNS}) VALUES (?, ?, ?, ?, ?)", values)  # noqa: S608

    return work


def served_of(row: tuple[Any, ...]) -> ServedUnder:
    lineage, revision, blueprint_id, at_ns, allowed = row
    return ServedUnder(bytes(lineage), revision, bytes(blueprint_id), at_ns, allowed)


def highest_of(rows: list[tuple[Any, ...]]) -> Served | None:
    """Of what HIGHEST finds."""
    return Served(rows[0][0], bytes(rows[0][1])) if rows else None
