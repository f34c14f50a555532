"""What is handed in to be hashed, and is not what it should be."""

from __future__ import annotations

from conformance.case import Group
from conformance.material import KEY, digest
from conformance.writer import packed

HEX = digest(9).hex()
SEED = KEY.seed.hex()

BAD: tuple[tuple[str, str, str, dict[str, bytes], str], ...] = (
    ("text-surrogate", "prompt-hash text prompt.txt", "request.1", {"prompt.txt": b"\xed\xa0\x80"},
        "A lone surrogate, which UTF-8 does not have."),
    ("text-wide", "prompt-hash text prompt.txt", "request.1", {"prompt.txt": b"\xc0\x80"},
        "Two bytes for what one byte says."),
    ("text-cut", f"prompt-hash text prompt.txt {HEX}", "request.1", {"prompt.txt": "é".encode()[:1]},
        "Half a character, with a good nonce."),
    ("nonce-none", "prompt-hash text prompt.txt -", "request.1", {"prompt.txt": b"hi"}, "A nonce of no bytes."),
    ("ids-one", "prompt-hash ids ids.bin", "request.1", {"ids.bin": b"\x00"}, "One byte."),
    ("ids-five", f"prompt-hash ids ids.bin {HEX}", "request.1", {"ids.bin": packed([1]) + b"\x00"}, "Five bytes."),
    ("payload-two", "payload ids.bin", "request.1", {"ids.bin": b"\x00\x00"}, "Two bytes."),
    ("seed-none", f"opening - {HEX} {HEX[:32]}", "commitment.1", {}, "A seed of no bytes."),
    ("serve-long", f"opening {SEED} {HEX} {HEX}", "commitment.1", {}, "A serve id of 32 bytes."),
    ("opening-none", f"commitment - {HEX} {HEX} ids.bin", "commitment.1", {"ids.bin": b""}, "An opening of no bytes."),
    ("digest-long", f"commitment {HEX} {HEX} {HEX}00 ids.bin", "commitment.1", {"ids.bin": b""},
        "A payload digest of 33 bytes."),
    ("output-six", f"commitment {HEX} {HEX} {HEX} ids.bin", "commitment.1", {"ids.bin": bytes(6)}, "Six bytes."),
)  # fmt: skip


def cases() -> Group:
    group = Group("hashed")
    for name, call, where, files, comment in BAD:
        group.reject(name, call, "schema", where, comment, files)
    return group
