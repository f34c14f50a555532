"""One block of a chain: a COSE_Sign1 over caveats and the key of whoever may add the next.

    18([<< {1: -19, 3: "application/mesh-grant+cbor", 4: key} >>, {}, << grant-block >>, signature])

Signed with the parent's id as external_aad, empty for the first. The id is over what is signed, so it commits to the
whole chain up to here, to the signer and to what the block states, and a second signature of the same makes no second
block. A receipt's header has other entries and another type, so neither can ever be taken for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from mesh.errors import CanonicalError, EncodingError, HeaderError, PayloadError, SchemaError
from mesh.grant.caveats import check_caveats
from mesh.schema import cose
from mesh.schema.canonical import encode
from mesh.schema.envelope import SigningKey, verify_signature
from mesh.schema.ids import ContentId, steward_text
from mesh.schema.limits import MAX_GRANT_BYTES
from mesh.schema.value import Digest, Id16, Value

GRANT_TYPE = "application/mesh-grant+cbor"
NO_PARENT = b""


class GrantBlock(Value):
    """`next` is the key that signs the block after this one, or the chain's end. `caveats` all have to hold. The first
    block, and no other, has a `nonce` of 16 random bytes: two grants are never the same by accident."""

    v: Literal["mesh/1"]
    next: Digest
    caveats: dict[str, Any]
    nonce: Id16 | None = None

    def __post_init__(self) -> None:
        check_caveats(self.caveats)

    def to_cbor(self) -> bytes:
        return encode(self.to_map())  # caveats are an open map, so their names still need ordering


@dataclass(frozen=True, slots=True)
class Block:
    """A block that was checked. `envelope` are its bytes."""

    id: ContentId
    signer: bytes
    value: GrantBlock
    envelope: bytes


@lru_cache(maxsize=256)
def header(key: bytes) -> bytes:
    """The protected header of everything that `key` signs in a chain."""
    return cose.canonical_header({1: cose.ALG_ED25519, 3: GRANT_TYPE, 4: key})


def seal_block(value: GrantBlock, key: SigningKey, parent: bytes) -> Block:
    """`parent` is the id of the block before, `NO_PARENT` for the first."""
    protected, payload = header(key.public), value.to_cbor()
    signed = cose.to_be_signed(protected, payload, parent)
    envelope = cose.assemble(protected, cose.NO_HEADER, payload, key.sign(signed))
    return Block(_id(signed), key.public, value, envelope)


def verify_block(data: bytes, parent: bytes, check_signer: Callable[[bytes], None]) -> Block:
    """Check one block. `check_signer` is told the key in its header, and raises where that may not sign here. Raises
    the EnvelopeError of the first fault, in the order of SPEC.md, section Grants, or what `check_signer` raises."""
    parts = cose.split(data)
    protected, unprotected, payload, signature = parts or cose.take_apart(data)
    key = protected[-32:]
    if protected != header(key):
        _explain(protected)
    if parts is None and data != cose.assemble(protected, cose.canonical_header(unprotected), payload, signature):
        raise CanonicalError("block: not the canonical encoding: a wider head, another order or trailing bytes")
    if protected != header(key):
        raise HeaderError(
            f"block: protected header must hold exactly algorithm {cose.ALG_ED25519}, {GRANT_TYPE}, a key"
        )
    if unprotected:
        raise HeaderError("block: the unprotected header must be empty")
    check_signer(key)
    signed = cose.to_be_signed(protected, payload, parent)
    verify_signature(key, signed, signature)
    try:
        value = GrantBlock.from_cbor(payload, max_bytes=MAX_GRANT_BYTES)
    except (EncodingError, SchemaError) as e:
        raise PayloadError(f"payload: {e}") from None
    if (parent == NO_PARENT) != (value.nonce is not None):
        raise PayloadError("payload: a nonce must be in the first block and in no other")
    return Block(_id(signed), key, value, data)


def only(expected: bytes) -> Callable[[bytes], None]:
    """A `check_signer` for the key that the block before names."""

    def check(key: bytes) -> None:
        if key != expected:
            raise HeaderError(f"block: signed by {steward_text(key)}, its parent names {steward_text(expected)}")

    return check


def closing_signed(last: Block) -> bytes:
    """What the last block's `next` signs to end the chain: a block without payload, which no block is."""
    return cose.to_be_signed(header(last.value.next), b"", last.id)


def _explain(protected: bytes) -> None:
    """Raises StructureError or CanonicalError where one of these is what is wrong with a header."""
    if cose.canonical_header(cose.parse_header(protected)) != protected:
        raise CanonicalError("block: the protected header is not in its canonical encoding")


def _id(signed: bytes) -> ContentId:
    return ContentId.of_canonical("grant-block", signed)
