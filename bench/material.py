"""The receipts that are measured: as a GGUF engine's serves have them, every one different."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import cbor2

from mesh.schema.envelope import SigningKey, seal
from mesh.schema.receipt import Receipt

# As many as make caches of single values useless and still fit a processor's cache.
COUNT = 64


@dataclass(frozen=True, slots=True)
class Signed:
    """A sealed receipt, and what its signature is over (RFC 9052 section 4.4)."""

    envelope: bytes
    signature: bytes
    to_be_signed: bytes


def bench_key(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(b"bench " + name.encode()).digest())


def receipt_fields(steward: bytes, seq: int) -> dict[str, Any]:
    """The fields of a receipt as plain values, all that an ordinary chat answer has."""
    tokens, uj = 64 + seq % 64, 2_000_000 + seq
    return {
        "v": "mesh/1",
        "steward": steward,
        "seq": seq,
        "prev": _digest("prev", seq),
        "serve_id": _digest("serve", seq)[:16],
        "request_id": _digest("request", seq),
        "prompt_hash": _digest("prompt", seq),
        "max_tokens": 256,
        "started_ns": 1_790_000_000_000_000_000 + seq * 1_000_000_000,
        "ended_ns": 1_790_000_001_250_000_000 + seq * 1_000_000_000,
        "engine": engine_fields(),
        "outcome": {
            "finish": "stop",
            "counted_by": "both",
            "tokens_in": 431,
            "tokens_out": tokens,
            "tokens_accepted": tokens,
            "tokens_delivered": tokens,
            "cache_hit_tokens": 0,
            "delivered_fidelity": 1,
            "weights_digest": _digest("weights"),
        },
        "energy": {
            "basis": "modelled",
            "sources": [
                {"domain": "cpu", "method": "cpu-time@65W", "uj": uj, "resolution_ns": 10_000_000},
            ],
            "span_ns": 1_250_000_000,
            "uj": uj,
            "rule": "equal/1",
            "window_uj": uj,
            "peak_sharers": 1,
            "epoch": _digest("epoch")[:16],
        },
        "output_commitment": _digest("output", seq),
    }


def engine_fields() -> dict[str, Any]:
    return {
        "backend_id": "gguf/1.0.0/0123456789abcdef/x86_64-avx2/cpu/none",
        "recipe_id": "smollm2-135m-instruct-q4_1",
        "fidelity": 1,
        "deterministic": True,
        "settings_digest": _digest("settings"),
        "process": _digest("process")[:16],
        "weights_digest": _digest("weights"),
        "template_digest": _digest("template"),
    }


def signed_receipts(key: SigningKey) -> list[Signed]:
    return [
        taken_apart(seal(Receipt.from_map(receipt_fields(key.public, seq)), key).envelope)
        for seq in range(1, COUNT + 1)
    ]


def taken_apart(envelope: bytes) -> Signed:
    protected, _, payload, signature = cbor2.loads(envelope).value
    return Signed(envelope, signature, cbor2.dumps(["Signature1", protected, b"", payload]))


def _digest(what: str, number: int = 0) -> bytes:
    return hashlib.sha256(f"{what} {number}".encode()).digest()
