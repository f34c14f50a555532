"""The digests of SPEC.md, each as its formula reads there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blake3 import blake3

from conformance.writer import item, packed


def plain(data: bytes) -> bytes:
    return blake3(data).digest()


def derived(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=f"mesh/1 {context}").digest()


def content_id(kind: str, value: object) -> bytes:
    """Of a value, which `item` encodes."""
    return derived(kind, item(value))


def b3(digest: bytes) -> str:
    return "b3:" + digest.hex()


def steward_text(key: bytes) -> str:
    return "ed25519:" + key.hex()


def prompt_hash(data: bytes, nonce: bytes | None) -> bytes:
    return (blake3(data) if nonce is None else blake3(data, key=nonce)).digest()


def prompt_hash_of_text(text: str, nonce: bytes | None = None) -> bytes:
    return prompt_hash(b"\x00" + text.encode(), nonce)


def prompt_hash_of_ids(ids: Iterable[int], nonce: bytes | None = None) -> bytes:
    return prompt_hash(b"\x01" + packed(ids), nonce)


def decision_digest(options: Sequence[str], nonce: bytes | None = None) -> bytes:
    return prompt_hash(b"\x02" + item(list(options)), nonce)


def payload_digest(ids: Iterable[int]) -> bytes:
    return derived("payload", packed(ids))


def opening(seed: bytes, request_id: bytes, serve_id: bytes) -> bytes:
    return blake3(request_id + serve_id, key=derived("opening-key", seed)).digest()


def commitment(opening: bytes, request_id: bytes, payload: bytes, ids: Sequence[int]) -> bytes:
    """`payload` is its digest."""
    data = opening + request_id + payload + len(ids).to_bytes(8, "little") + packed(ids)
    return derived("output-commitment", data)


MASK = 2**64 - 1


def reference_state(prompt_hash: bytes, max_tokens: int) -> int:
    return int.from_bytes(prompt_hash[:8], "little") ^ (max_tokens << 1) & MASK


def reference_tokens(prompt_hash: bytes, max_tokens: int) -> list[int]:
    state, out = reference_state(prompt_hash, max_tokens), []
    for _ in range(max_tokens):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        out.append((z ^ z >> 31) % 32000)
    return out
