"""Which receipts an audit replays: the lowest ranks under a key that head and seed make together."""

from __future__ import annotations

from blake3 import blake3

from conformance.case import Group

HEAD = bytes(range(32))
SEED = bytes(32)


def drawn(head: bytes, seed: bytes, count: int, size: int) -> str:
    """As section Audit has it, by itself: the engine of the package is not asked."""
    key = blake3(head + seed, derive_key_context="mesh/1 audit-draw").digest()
    ranked = sorted((blake3(seq.to_bytes(8, "little"), key=key).digest(), seq) for seq in range(count))
    return " ".join(str(seq) for seq in sorted(seq for _, seq in ranked[:size]))


def cases() -> Group:
    group = Group("audit")
    beacon = bytes.fromhex("5d1f0b8c2e9a4471" * 4)
    for name, head, seed, count, size, comment in (
        ("worked", HEAD, SEED, 100, 5, "The one that the page works out."),
        ("all", HEAD, SEED, 4, 9, "No more are there than are asked for: all of them, ascending."),
        ("one", HEAD, SEED, 1, 1, "One of one."),
        ("head", HEAD[::-1], SEED, 100, 5, "Another head is another draw."),
        ("seed", HEAD, beacon, 100, 5, "Another seed is another draw."),
        ("seed-short", HEAD, bytes(16), 100, 5, "A seed of 16 bytes, the shortest: its length counts."),
        ("seed-long", HEAD, bytes(64), 100, 5, "A seed of 64 bytes, the longest."),
        ("many", HEAD, beacon, 1000, 20, "Numbers of more than one byte."),
    ):
        call = f"audit-draw {head.hex()} {seed.hex()} {count} {size}"
        group.accept(name, call, drawn(head, seed, count, size), "audit", comment, feature="audit")
    for name, head, seed, comment in (
        ("head-short", HEAD[1:], SEED, "A head of 31 bytes."),
        ("head-long", HEAD + b"\x00", SEED, "A head of 33 bytes."),
        ("head-none", b"", SEED, "No head at all: then nothing was named before the seed."),
        ("seed-too-short", HEAD, bytes(15), "A seed of 15 bytes can be guessed."),
        ("seed-too-long", HEAD, bytes(65), "A seed of 65 bytes."),
        ("seed-none", HEAD, b"", "No seed at all."),
    ):
        call = f"audit-draw {head.hex() or '-'} {seed.hex() or '-'} 100 5"
        group.reject(name, call, "schema", "audit.1", comment, feature="audit")
    return group
