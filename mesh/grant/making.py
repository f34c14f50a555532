"""Making grants: the issuer begins one, and whoever bears it narrows or closes it without asking anybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mesh.errors import Forbidden
from mesh.grant.block import NO_PARENT, Block, GrantBlock, closing_signed, seal_block
from mesh.grant.chain import Chain, Grant, verify_unvouched
from mesh.schema.canonical import decode_map, encode
from mesh.schema.envelope import SigningKey
from mesh.schema.limits import MAX_PAYLOAD_BYTES
from mesh.schema.receipt import VERSION

Random = Callable[[int], bytes]


def issue(key: SigningKey, caveats: Mapping[str, Any], *, random: Random) -> bytes:
    """A new grant of the issuer `key`, open. Raises EncodingError, SchemaError or PayloadError for caveats that
    cannot stand."""
    bearer = SigningKey(random(32))
    value = GrantBlock.of(v=VERSION, next=bearer.public, caveats=_plain(caveats), nonce=random(16))
    return _grown((), seal_block(value, key, NO_PARENT), bearer)


def check(caveats: Mapping[str, Any]) -> None:
    """Raises what `issue` would of these caveats, for whoever has no key yet."""
    issue(SigningKey(bytes(32)), caveats, random=bytes)


def attenuate(chain: Chain, caveats: Mapping[str, Any], *, random: Random) -> bytes:
    """The grant with one more block, open. Raises Forbidden where it is closed, SchemaError where it would be too
    long."""
    key = _bearer(chain)
    after = SigningKey(random(32))
    value = GrantBlock.of(v=VERSION, next=after.public, caveats=_plain(caveats))
    return _grown(chain.blocks, seal_block(value, key, chain.id), after)


def close(chain: Chain) -> bytes:
    """The grant ended: nobody can add to it any more. Raises Forbidden where it is closed."""
    closing = _bearer(chain).sign(closing_signed(chain.blocks[-1]))
    data = Grant.of(blocks=[block.envelope for block in chain.blocks], closing=closing).to_bytes()
    verify_unvouched(data)
    return data


def _plain(caveats: Mapping[str, Any]) -> dict[str, Any]:
    """As a reader will find them: content ids are byte strings there. Raises EncodingError for what has no encoding."""
    return decode_map(encode(dict(caveats)), max_bytes=MAX_PAYLOAD_BYTES)


def _bearer(chain: Chain) -> SigningKey:
    if chain.secret is None:
        raise Forbidden("grant: is closed, so nothing can be added to it", code="grant_closed")
    return SigningKey(chain.secret)


def _grown(before: tuple[Block, ...], block: Block, bearer: SigningKey) -> bytes:
    envelopes = [one.envelope for one in (*before, block)]
    data = Grant.of(blocks=envelopes, secret=bearer.seed).to_bytes()
    verify_unvouched(data)  # nobody is handed what no gateway would take
    return data
