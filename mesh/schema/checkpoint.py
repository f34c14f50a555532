"""A steward's statement of how far its ledger reaches and what its meters had counted by then."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_SOURCES
from mesh.schema.value import Digest, Id16, Name, UInt, Value


class DomainTotals(Value):
    """One meter domain over the epoch so far, in microjoules of its own counter: `last_uj - first_uj` equals the sum
    of the receipts' shares + `idle_uj` + `unattributed_uj` + `open_uj` (held by serves still running)."""

    domain: Name
    first_uj: UInt
    last_uj: UInt
    idle_uj: UInt
    unattributed_uj: UInt
    open_uj: UInt


class Checkpoint(Value):
    """`count` receipts exist, seq 0..count-1, the last of them `head`. `domains` cover the receipts of `epoch` from
    `epoch_seq` on."""

    v: Literal["mesh/1"]
    steward: Digest
    at_ns: UInt
    count: UInt
    domains: Annotated[list[DomainTotals], Meta(max_length=MAX_SOURCES)]
    head: Digest | None = None
    epoch: Id16 | None = None
    epoch_seq: UInt | None = None

    def __post_init__(self) -> None:
        if (self.count == 0) != (self.head is None):
            raise ValueError("head must be absent at count 0 and there at any other")
        if (self.epoch is None) != (self.epoch_seq is None) or (self.domains and self.epoch is None):
            raise ValueError("epoch and epoch_seq come together, and with any domain")
        names = [d.domain for d in self.domains]
        if names != sorted(set(names)):
            raise ValueError("domains must be sorted, each once")

    @property
    def id(self) -> ContentId:
        return ContentId.of_canonical("checkpoint", self.to_cbor())
