"""Grants put together by hand: blocks, chains and what ends them."""

from __future__ import annotations

import base64
from typing import Any

from conformance.digests import derived
from conformance.ed25519 import Key
from conformance.material import KEY, STARTED_NS, Map, changed, digest, sign1, to_be_signed
from conformance.writer import bstr, integer, item, mapping, text

GRANT_TYPE = "application/mesh-grant+cbor"
ISSUER = KEY
BEARERS = [Key(bytes([0x30 + number]) * 32) for number in range(9)]
STEWARD = Key(b"\x41" * 32).public
BACKEND = "gguf/1/none/none/none/none"
SECOND_NS = 10**9


def header(key: Key, **parts: bytes | None) -> bytes:
    """A block's protected header; `alg`, `type` and `kid` may be given, encoded, or None to drop."""
    has = {"alg": integer(-19), "type": text(GRANT_TYPE), "kid": bstr(key.public), **parts}
    order = ((1, "alg"), (3, "type"), (4, "kid"))
    return mapping((integer(n), value) for n, name in order if (value := has[name]) is not None)


def content(after: Key, caveats: Map | None = None, **fields: Any) -> Map:
    """A later block's payload."""
    return changed({"v": "mesh/1", "next": after.public, "caveats": caveats or {}}, **fields)


def first_content(after: Key, caveats: Map | None = None, **fields: Any) -> Map:
    return content(after, caveats, **{"nonce": bytes(range(16)), **fields})


def block(key: Key, payload: bytes, parent: bytes = b"", *, head: bytes | None = None, **rest: Any) -> bytes:
    """Signed over what it then holds."""
    head = header(key) if head is None else head
    signature = key.sign(to_be_signed(head, payload, aad=parent))
    return sign1(payload, head, **{"signature": signature, **rest})


def block_id(key: Key, payload: bytes, parent: bytes = b"") -> bytes:
    return derived("grant-block", to_be_signed(header(key), payload, aad=parent))


class Chain:
    """A grant with a block for each of `caveats`."""

    def __init__(self, *caveats: Map, issuer: Key = ISSUER, **first: Any) -> None:
        self.blocks: list[bytes] = []
        self.ids: list[bytes] = []
        self.bearer = issuer
        for number, stated in enumerate(caveats):
            after = BEARERS[number]
            payload = item(content(after, stated) if self.blocks else first_content(after, stated, **first))
            self.add(payload, after)

    def add(self, payload: bytes, after: Key) -> Chain:
        parent = self.ids[-1] if self.ids else b""
        self.blocks.append(block(self.bearer, payload, parent))
        self.ids.append(block_id(self.bearer, payload, parent))
        self.bearer = after
        return self

    @property
    def id(self) -> bytes:
        return self.ids[-1]

    @property
    def closing(self) -> bytes:
        return self.bearer.sign(to_be_signed(header(self.bearer), b"", aad=self.id))

    def open(self) -> bytes:
        return whole(self.blocks, self.bearer)

    def closed(self) -> bytes:
        return whole(self.blocks, closing=self.closing)


def whole(blocks: list[bytes], bearer: Key | None = None, **fields: Any) -> bytes:
    ends = {} if bearer is None else {"secret": bearer.seed}
    return item({"blocks": blocks, **ends, **fields})


def grant_text(data: bytes) -> str:
    return "mg1_" + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def frame(**fields: Any) -> Map:
    """A serve of 100 tokens in and at most 50 out."""
    value = {
        "steward": STEWARD,
        "recipe_id": "smollm2-135m",
        "backend_id": BACKEND,
        "fidelity": 1,
        "prompt_tokens": 100,
        "max_tokens": 50,
        "now_ns": STARTED_NS,
        "weights_digest": digest(0x0A),
        "blueprint_id": digest(0x0C),
        "est_uj": 1_000,
    }
    return changed(value, **fields)
