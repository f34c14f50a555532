"""A grant: its chain of blocks, and either the secret that can add to it or the signature that ends it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from mesh.errors import PayloadError, SchemaError, SignatureError, UntrustedSteward
from mesh.grant.block import NO_PARENT, Block, closing_signed, only, verify_block
from mesh.grant.caveats import STEWARD_IN, TOTALS
from mesh.schema.envelope import SigningKey, verify_signature
from mesh.schema.ids import ContentId, steward_text
from mesh.schema.limits import MAX_GRANT_BLOCKS, MAX_GRANT_BYTES
from mesh.schema.trust import Trust, time_text
from mesh.schema.value import Digest, Signature, Value


class Grant(Value):
    """As it travels: envelopes, and exactly one of `secret`, the seed of the key that signs the next block, and
    `closing`, that key's signature over the end."""

    blocks: list[bytes]
    secret: Digest | None = None
    closing: Signature | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.blocks) <= MAX_GRANT_BLOCKS:
            raise ValueError(f"blocks: {len(self.blocks)}, expected 1 to {MAX_GRANT_BLOCKS}")
        if (self.secret is None) == (self.closing is None):
            raise ValueError("must hold either a secret or a closing signature")

    def __repr__(self) -> str:
        return f"Grant({len(self.blocks)} blocks)"  # without the secret

    def to_bytes(self) -> bytes:
        """Raises SchemaError where it has grown too long to be read again."""
        data = self.to_cbor()
        if len(data) > MAX_GRANT_BYTES:
            raise SchemaError(f"grant: {len(data)} bytes, at most {MAX_GRANT_BYTES}")
        return data


@dataclass(frozen=True, slots=True)
class Chain:
    """A grant that was checked. `secret` is None where it was closed. Never print it: whoever has it is the bearer."""

    blocks: tuple[Block, ...]
    secret: bytes | None = field(repr=False)

    @property
    def id(self) -> ContentId:
        """The last block's: what a receipt calls `grant_id`."""
        return self.blocks[-1].id

    @property
    def issuer(self) -> bytes:
        return self.blocks[0].signer

    def check_issuer(self, trust: Collection[bytes], now_ns: int) -> None:
        """Raises UntrustedSteward where the issuer is not trusted now. A grant states no time of its own, so that what
        a retired issuer signed ends with him."""
        if self.issuer not in trust:
            raise UntrustedSteward(f"grant: issuer {steward_text(self.issuer)} is not in the trust set")
        if isinstance(trust, Trust) and not any(window.holds(now_ns) for window in trust.windows(self.issuer)):
            known = ", ".join(map(str, trust.windows(self.issuer)))
            raise UntrustedSteward(
                f"grant: issuer {steward_text(self.issuer)} is trusted {known}, not at {time_text(now_ns)}"
            )


def verify_grant(data: bytes, trust: Collection[bytes]) -> Chain:
    """Check a grant whose issuer must be in `trust`. Raises EncodingError or SchemaError for what is no grant, then
    what is wrong with the first block that is, or UntrustedSteward, and last what is wrong with its end."""

    def in_trust(key: bytes) -> None:
        if key not in trust:
            raise UntrustedSteward(f"grant: issuer {steward_text(key)} is not in the trust set")

    return _verify(data, in_trust)


def verify_unvouched(data: bytes) -> Chain:
    """Check that a grant agrees with itself, whoever issued it: enough to read it or to narrow it, never to serve under
    it."""
    return _verify(data, lambda key: None)


def _verify(data: bytes, check_issuer: Callable[[bytes], None]) -> Chain:
    grant = Grant.from_cbor(data, max_bytes=MAX_GRANT_BYTES)
    blocks: list[Block] = []
    parent, check_signer = NO_PARENT, check_issuer
    one_steward = False
    for number, envelope in enumerate(grant.blocks):
        block = verify_block(envelope, parent, check_signer)
        caveats = block.value.caveats
        one_steward = one_steward or len(caveats.get(STEWARD_IN, ())) == 1
        if not one_steward and not TOTALS.keys().isdisjoint(caveats):
            raise PayloadError(
                f"block {number}: states a total, but no {STEWARD_IN} of one key so far: each steward would count alone"
            )
        blocks.append(block)
        parent, check_signer = block.id, only(block.value.next)
    last = blocks[-1]
    if grant.closing is not None:
        verify_signature(last.value.next, closing_signed(last), grant.closing)
    elif grant.secret is None or SigningKey(grant.secret).public != last.value.next:
        raise SignatureError("grant: the secret is not that of the key which its last block names")
    return Chain(tuple(blocks), grant.secret)
