"""What goes into a serve and comes out of it: where its tokens go, and what only its caller may see."""

from __future__ import annotations

from typing import Any, Protocol

from mesh.engine.protocol import TokenSink
from mesh.errors import EngineError
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import Sealed
from mesh.schema.ids import ContentId
from mesh.schema.receipt import Receipt
from mesh.schema.record import Record
from mesh.schema.request import ServeRequest, pack_ids


class Delivery(TokenSink, Protocol):
    """A sink that also knows what became of the tokens. `cut_by` says who set `cancelled`: `client-gone` (also where it
    is None), `deadline` or `shutdown`."""

    cut_by: str | None

    async def settle(self) -> int | None:
        """Called once, after the engine has ended: waits until everything put is on its way to the client or the
        client is gone, and returns how many of the ids the client has, or will have with the answer. None: unknown."""
        ...


class SealedServe(Record):
    """A serve with its receipt, and what only its caller may see of it. `payload` is all that the engine was handed: in
    a typed decision the ids of the options too; `decided` then has the natural log-probability of each option."""

    sealed: Sealed
    receipt_id: ContentId
    receipt: Receipt
    request: ServeRequest
    tokens: tuple[int, ...]
    payload: tuple[int, ...]
    opening: bytes
    settings: dict[str, Any]
    error: EngineError | None
    decided: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        return f"SealedServe({self.receipt_id!r}, {self.error!r})"  # nothing of what was said

    def disclosure(self, *, output: bool = True, prompt: str | None = None) -> Disclosure:
        return Disclosure.of(
            serve_id=self.receipt.serve_id,
            request=self.request,
            payload=pack_ids(self.payload),
            opening=self.opening,
            settings=self.settings,
            output=pack_ids(self.tokens) if output and self.receipt.output_commitment is not None else None,
            prompt=prompt,
        )


class Repeated(Record):
    """Nothing ran: this idempotency key already has a sealed serve of the same body."""

    serve_id: bytes
