"""Which receipts an audit replays, drawn so that nobody could know them before the steward's head was named.

    key       = BLAKE3 derive-key "mesh/1 audit-draw" (head || seed)
    rank(seq) = BLAKE3 keyed by key (u64le(seq))

The receipts with the lowest ranks are drawn. The head fixes every receipt up to it; the seed is public and was not
there when the head was named, so the steward cannot choose what is drawn, and neither can the auditor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from blake3 import blake3

from mesh.errors import SchemaError

MIN_SEED_BYTES, MAX_SEED_BYTES = 16, 64  # what a beacon gives: drand 32 bytes, NIST's 64
_CONTEXT = "mesh/1 audit-draw"


def seed_of(text: str) -> bytes:
    """A seed in hex, as beacons print theirs. Raises SchemaError."""
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(text) != 2 * len(seed) or not MIN_SEED_BYTES <= len(seed) <= MAX_SEED_BYTES:
        raise SchemaError(f"seed: expected {MIN_SEED_BYTES} to {MAX_SEED_BYTES} bytes in hex, got {text[:160]!r}")
    return seed


def draw(head: bytes, seed: bytes, seqs: Iterable[int], size: int) -> list[int]:
    """The `size` of `seqs` with the lowest ranks, ascending; all where there are no more. `head` is the 32-byte id of
    the last receipt that may be drawn. Memory for `size` of them, whatever `seqs` are."""
    if len(head) != 32:
        raise SchemaError(f"head: {len(head)} bytes, expected 32")
    key = blake3(head + seed, derive_key_context=_CONTEXT).digest()
    ranked = ((blake3(seq.to_bytes(8, "little"), key=key).digest(), seq) for seq in seqs)
    return sorted(seq for _, seq in heapq.nsmallest(size, ranked))
