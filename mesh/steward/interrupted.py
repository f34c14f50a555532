"""The receipt of a serve that its process did not live to end."""

from __future__ import annotations

from typing import Any

from mesh.ledger import Intent
from mesh.schema.energy import Energy
from mesh.schema.limits import MAX_PAYLOAD_BYTES
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock
from mesh.schema.request import ServeRequest


def interrupted_fields(intent: Intent, now_ns: int) -> dict[str, Any]:
    """What the intent says, and nothing of what became of it; `now_ns` is Unix time."""
    request = ServeRequest.from_cbor(intent.request, max_bytes=MAX_PAYLOAD_BYTES)
    return {
        "serve_id": intent.serve_id,
        "request_id": request.id,
        "prompt_hash": request.prompt_hash,
        "max_tokens": request.max_tokens,
        "started_ns": intent.started_ns,
        "ended_ns": max(now_ns, intent.started_ns),
        "engine": EngineBlock.from_cbor(intent.engine, max_bytes=MAX_PAYLOAD_BYTES),
        "outcome": ServeOutcome.of(finish="interrupted", counted_by="none"),
        "energy": Energy.of(basis="absent", sources=[], reason="interrupted"),
        "grant_id": intent.grant_id,
    }
