"""Openings and output commitments."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, commitment, opening, payload_digest
from conformance.material import KEY, SERVE_ID, digest
from conformance.writer import packed

OPENING, REQUEST, PAYLOAD = digest(40), digest(20), payload_digest([104, 105])


def cases() -> Group:
    group = Group("commitment")
    for name, serve, comment in (
        ("opening", SERVE_ID, "The opening of a serve, from the signing seed."),
        ("opening-other-serve", bytes(range(16)), "Another serve of the same request has another."),
    ):
        line = b3(opening(KEY.seed, REQUEST, serve))
        call = f"opening {KEY.seed.hex()} {REQUEST.hex()} {serve.hex()}"
        group.accept(name, call, line, "commitment", comment)
    for name, ids, comment in (
        ("output", [2401, 30756, 29543, 14630], "Four ids."),
        ("output-empty", [], "No ids: cut before the first."),
        ("output-zeros", [0, 0], "The count is hashed too, so that nothing can be appended."),
        ("output-highest", [2**32 - 1], "The highest id."),
        ("output-300", list(range(300)), "More than one chunk of BLAKE3."),
    ):
        line = b3(commitment(OPENING, REQUEST, PAYLOAD, ids))
        call = f"commitment {OPENING.hex()} {REQUEST.hex()} {PAYLOAD.hex()} ids.bin"
        group.accept(name, call, line, "commitment", comment, {"ids.bin": packed(ids)})
    a, b, c = OPENING.hex(), REQUEST.hex(), PAYLOAD.hex()
    seed, serve_id = KEY.seed.hex(), SERVE_ID.hex()
    for name, call, comment in (
        ("seed-short", f"opening {seed[2:]} {b} {serve_id}", "A seed of 31 bytes."),
        ("seed-long", f"opening {seed}00 {b} {serve_id}", "A seed of 33 bytes."),
        ("request-short", f"opening {seed} {b[2:]} {serve_id}", "A request id of 31 bytes."),
        ("serve-short", f"opening {seed} {b} {serve_id[2:]}", "A serve id of 15 bytes."),
        ("serve-none", f"opening {seed} {b} -", "A serve id of no bytes."),
        ("shifted", f"opening {seed} {b}{serve_id[:2]} {serve_id[2:]}", "The same 48 bytes, divided elsewhere."),
        ("opening-short", f"commitment {a[2:]} {b} {c} ids.bin", "An opening of 31 bytes."),
        ("request-long", f"commitment {a} {b}00 {c} ids.bin", "A request id of 33 bytes."),
        ("payload-short", f"commitment {a} {b} {c[2:]} ids.bin", "A payload digest of 31 bytes."),
    ):
        group.reject(name, call, "schema", "commitment", comment, {"ids.bin": packed([1])} if "ids" in call else {})
    group.reject(
        "output-cut", f"commitment {a} {b} {c} ids.bin", "schema", "commitment", "Three bytes are no id of four.",
        {"ids.bin": b"\x01\x00\x00"},
    )  # fmt: skip
    return group
