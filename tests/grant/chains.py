"""Grants of fixed keys, good ones by the package and bad ones by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import nacl.signing

from mesh.grant.block import GRANT_TYPE
from mesh.grant.chain import Chain, verify_grant
from mesh.grant.frame import Frame
from mesh.grant.making import attenuate, issue
from mesh.schema.envelope import SigningKey
from tests.schema import handmade

ISSUER = SigningKey(hashlib.sha256(b"issuer").digest())
STRANGER = SigningKey(hashlib.sha256(b"stranger").digest())
STEWARD = SigningKey(hashlib.sha256(b"steward").digest()).public
TRUST = frozenset({ISSUER.public})
BEARERS = [SigningKey(hashlib.sha256(b"bearer %d" % n).digest()) for n in range(10)]
WEIGHTS, OTHER_WEIGHTS = b"\x0a" * 32, b"\x0b" * 32
NOW_NS = 1_790_000_000_000_000_000
BACKEND = "gguf/1/none/none/none/none"


def fixed(seed: int = 0) -> Callable[[int], bytes]:
    """Random bytes that are the same every time."""
    count = iter(range(1_000_000))
    return lambda size: hashlib.shake_256(b"%d %d" % (seed, next(count))).digest(size)


def frame(**fields: Any) -> Frame:
    whole = {
        "steward": STEWARD,
        "recipe_id": "smollm2-135m",
        "backend_id": BACKEND,
        "fidelity": 1,
        "prompt_tokens": 100,
        "max_tokens": 50,
        "now_ns": NOW_NS,
        "weights_digest": WEIGHTS,
        "blueprint_id": b"\x0c" * 32,
        "runtime_recipe_digest": b"\x0d" * 32,
        "est_uj": 1_000,
    }
    return Frame.of(**{**whole, **fields})


def grant(*caveats: Mapping[str, Any], seed: int = 0) -> bytes:
    """An open grant with one block for each."""
    random = fixed(seed)
    data = issue(ISSUER, caveats[0], random=random)
    for more in caveats[1:]:
        data = attenuate(verify_grant(data, TRUST), more, random=random)
    return data


def chain(*caveats: Mapping[str, Any], seed: int = 0) -> Chain:
    return verify_grant(grant(*caveats, seed=seed), TRUST)


# ------------------------------------------------------------------------------------------------------ by hand


def header(key: SigningKey, **changes: Any) -> bytes:
    """`alg`, `type` and `kid` may be given, encoded, or None to drop; `more` are pairs to add."""
    parts = {
        "alg": handmade.integer(-19),
        "type": handmade.text(GRANT_TYPE),
        "kid": handmade.bstr(key.public),
        "more": (),
        **changes,
    }
    pairs = [(handmade.integer(n), parts[name]) for n, name in ((1, "alg"), (3, "type"), (4, "kid"))]
    return handmade.mapping([pair for pair in pairs if pair[1] is not None] + list(parts["more"]))


def signed_bytes(protected: bytes, payload: bytes, parent: bytes) -> bytes:
    return handmade.array([handmade.text("Signature1"), *map(handmade.bstr, (protected, parent, payload))])


def sign(key: SigningKey, message: bytes) -> bytes:
    return nacl.signing.SigningKey(key.seed).sign(message).signature


def sign1(protected: bytes, payload: bytes, signature: bytes, unprotected: bytes = b"\xa0") -> bytes:
    parts = [handmade.bstr(protected), unprotected, handmade.bstr(payload), handmade.bstr(signature)]
    return b"\xd2" + handmade.array(parts)


def block(
    key: SigningKey,
    payload: bytes,
    parent: bytes = b"",
    *,
    protected: bytes | None = None,
    unprotected: bytes = b"\xa0",
) -> bytes:
    """A block signed over whatever it then holds."""
    protected = header(key) if protected is None else protected
    return sign1(protected, payload, sign(key, signed_bytes(protected, payload, parent)), unprotected)


def payload(after: SigningKey, caveats: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    """The first block's unless `nonce` is None."""
    fields = {"v": "mesh/1", "next": after.public, "caveats": dict(caveats or {}), "nonce": bytes(16), **changes}
    return handmade.item({name: value for name, value in fields.items() if value is not None})


def later(after: SigningKey, caveats: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    return payload(after, caveats, **{"nonce": None, **changes})


def whole(blocks: Sequence[bytes], bearer: SigningKey | None = None, **fields: Any) -> bytes:
    ends = {} if bearer is None else {"secret": bearer.seed}
    return handmade.item({"blocks": list(blocks), **ends, **fields})
