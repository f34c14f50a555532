"""Lines in the log for each request and each serve: of a serve what its receipt says of it, and nothing of what was
said in it or by whom."""

from __future__ import annotations

import logging
from typing import Any

from mesh.schema.envelope import Sealed
from mesh.schema.ids import serve_id_text
from mesh.schema.receipt import Receipt

serves = logging.getLogger("mesh.serves")


def tell(logger: logging.Logger, message: str, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
    """A line of `logger`, which is enabled, at level INFO. Like its `info`, but for the search through the stack for
    who has called it, which costs as much as the line. A formatter finds `fields` in the record's `fields`."""
    logger.handle(
        logger.makeRecord(logger.name, logging.INFO, __file__, 0, message, args, None, extra={"fields": fields})
    )


def write(sealed: Sealed, took_s: float) -> None:
    """The steward's observer."""
    if serves.isEnabledFor(logging.INFO):
        tell(serves, "sealed %s", (sealed.id.text,), fields(sealed, took_s))


def fields(sealed: Sealed, took_s: float) -> dict[str, Any]:
    """What there is of these; a count or figure that the receipt lacks is left out."""
    receipt: Receipt = sealed.value
    outcome, energy = receipt.outcome, receipt.energy
    told = {
        "serve": serve_id_text(receipt.serve_id),
        "receipt": sealed.id.text,
        "seq": receipt.seq,
        "model": receipt.engine.recipe_id,
        "finish": outcome.finish,
        "reason": outcome.reason,
        "tokens_in": outcome.tokens_in,
        "tokens_out": outcome.tokens_out,
        "tokens_delivered": outcome.tokens_delivered,
        "energy": energy.basis,
        "uj": energy.uj,
        "span_us": None if energy.span_ns is None else energy.span_ns // 1000,
        "seal_us": int(took_s * 1e6),
    }
    return {name: value for name, value in told.items() if value is not None}
