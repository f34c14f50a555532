"""What goes into the ledger and comes out of it. Bytes that are canonical CBOR are kept as they are, never remade."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.grant.draw import Draw
from mesh.schema.record import Record


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's `Idempotency-Key`. `body_mac` is a 32-byte keyed hash of the request's body: the body itself is not
    kept. `after` is the serve under this key that failed and whose place this one takes."""

    key: str
    body_mac: bytes
    after: bytes | None = None


class Intent(Record):
    """A serve that is about to start. `serve_id` is 16 bytes, `caller` an opaque name of the credential, `started_ns`
    Unix time; `request`, `engine` and `settings` are the canonical CBOR of the ServeRequest, the EngineBlock and the
    engine's settings document. `grant_id` is what it is served under, and `draws` what it may need of that grant's
    totals; `route` is the canonical CBOR of the route's document, where the engine is one. An intent that is read back
    has neither, the ledger keeps them."""

    serve_id: bytes
    caller: str
    request: bytes
    engine: bytes
    settings: bytes
    recipe_id: str
    started_ns: int
    idempotency: Idempotency | None = None
    grant_id: bytes | None = None
    draws: tuple[Draw, ...] = ()
    route: bytes | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """What is used of a total, in its unit. `settled`: by receipts that say how much. `estimated`: the reservations of
    those that do not. `reserved`: those of serves that run."""

    settled: int = 0
    estimated: int = 0
    reserved: int = 0

    @property
    def used(self) -> int:
        return self.settled + self.estimated + self.reserved


class Position(Record):
    """Where the next receipt goes: its `seq`, and the id of the receipt before it (None at 0). To a checkpoint the
    same two say how many receipts there are and which is the last."""

    seq: int
    prev: bytes | None


class Kept(Record):
    """What an operator who turned keeping on holds of a serve until `until_ns` (Unix time): packed prompt ids, packed
    output ids, and the prompt's text where there was one."""

    payload: bytes
    output: bytes
    prompt: str | None
    until_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One receipt of the ledger: the signed envelope, and what only the ledger knows of it."""

    seq: int
    receipt_id: bytes
    serve_id: bytes
    caller: str
    envelope: bytes
    request: bytes
