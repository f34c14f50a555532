"""Serves through a steward, and what its ledger has of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesh.ledger import LedgerReader, check_sequence
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.receipt import Receipt
from mesh.steward.steward import SealedServe, Steward
from tests.support.stewards import KEY, PROMPT, Client, request


async def serve(steward: Steward, engine: Any, client: Client | None = None, **fields: Any) -> SealedServe:
    admitted = await steward.admit(request(**fields), [engine], caller="tests")
    served = await steward.serve(admitted, PROMPT, client or Client(), serve_id=steward.new_serve_id())
    assert isinstance(served, SealedServe)
    return served


def in_ledger(folder: Path) -> list[Receipt]:
    with LedgerReader.open(folder / "ledger.sqlite") as reader:
        sealed = [verify(entry.envelope, RECEIPT_TYPE, {KEY.public}) for entry in reader.receipts()]
    check_sequence((s.value, s.id) for s in sealed)
    return [s.value for s in sealed]
