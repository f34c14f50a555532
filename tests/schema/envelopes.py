"""Envelopes put together by hand, signed over whatever they hold."""

from __future__ import annotations

from typing import Any

import nacl.signing

from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify
from mesh.schema.ids import steward_text
from tests.schema import handmade, samples
from tests.schema.samples import KEY

TRUST = frozenset({KEY.public})
SEALED = samples.sealed_receipt()
PAYLOAD = handmade.item(samples.receipt())


def protected(**changes: Any) -> bytes:
    """The protected header's bytes; `alg`, `type`, `kid`, `iss` and `sub` may be given, encoded, or None to drop."""
    parts = {
        "alg": handmade.integer(-19),
        "type": handmade.text(RECEIPT_TYPE),
        "kid": handmade.bstr(KEY.public),
        "iss": handmade.text(steward_text(KEY.public)),
        "sub": handmade.text("smollm2-135m"),
        **changes,
    }
    claims = handmade.mapping(
        (handmade.integer(n), parts[k]) for n, k in ((1, "iss"), (2, "sub")) if parts[k] is not None
    )
    pairs = [(1, parts["alg"]), (3, parts["type"]), (4, parts["kid"]), (15, parts.get("claims", claims))]
    return handmade.mapping((handmade.integer(n), value) for n, value in pairs if value is not None)


def signature(
    header: bytes, payload: bytes, key: SigningKey = KEY, *, aad: bytes = b"", context: str = "Signature1"
) -> bytes:
    signed = handmade.array([handmade.text(context), *map(handmade.bstr, (header, aad, payload))])
    return nacl.signing.SigningKey(key.seed).sign(signed).signature


def envelope(
    header: bytes | None = None, payload: bytes = PAYLOAD, unprotected: bytes = b"\xa0", signed: bytes | None = None
) -> bytes:
    """A COSE_Sign1 put together by hand and signed over whatever it then holds."""
    header = protected() if header is None else header
    signed = signature(header, payload) if signed is None else signed
    return b"\xd2" + handmade.array([handmade.bstr(header), unprotected, handmade.bstr(payload), handmade.bstr(signed)])


def check(data: bytes, content_type: str = RECEIPT_TYPE, trust: Any = TRUST) -> Any:
    return verify(data, content_type, trust)
