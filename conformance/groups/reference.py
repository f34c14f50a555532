"""What the reference engine makes, and what it counts as cached."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import plain, reference_tokens
from conformance.material import digest

HASH = plain(b"\x00hi")
SHARED = HASH[:8] + digest(9)[8:]
# `max_tokens << 1` goes into the state, so another cap can meet the state of another hash.
MET = (int.from_bytes(HASH[:8], "little") ^ (4 << 1) ^ (6 << 1)).to_bytes(8, "little") + HASH[8:]


def cases() -> Group:
    group = Group("reference")
    for name, prompt_hash, count, comment in (
        ("hi", HASH, 4, "The prompt `hi` without a nonce."),
        ("one", HASH, 1, "One token: another cap is another stream."),
        ("five", HASH, 5, "Five tokens, which do not begin with the four above."),
        ("zeros", bytes(32), 8, "A hash of zeros."),
        ("ones", b"\xff" * 32, 8, "A hash of ones: every addition wraps."),
        ("little-endian", b"\x01" + bytes(31), 4, "The first byte is the lowest."),
        ("eighth-byte", bytes(7) + b"\x80" + bytes(24), 4, "The eighth byte is the highest."),
        ("ninth-byte", bytes(8) + b"\x01" + bytes(23), 4, "The ninth byte does not count: as with zeros."),
        ("same-start", SHARED, 4, "Another hash with the same first eight bytes gives the same ids."),
        ("met", MET, 6, "Another hash and another cap with the same start state: the ids of `hi`, and two more."),
        ("wide-cap", plain(b"cap"), 300, "More than 256 tokens."),
        ("thousand", plain(b"thousand"), 1000, "A thousand tokens."),
        *((f"seed-{n}", plain(bytes([n])), 6, "Six tokens of a random hash.") for n in range(6)),
    ):
        tokens = reference_tokens(prompt_hash, count)
        call = f"reference-tokens {prompt_hash.hex()} {count}"
        more = {"prompt_hash": prompt_hash.hex(), "max_tokens": count, "tokens": tokens}
        line = " ".join(map(str, tokens))
        group.accept(name, call, line, "engines", comment, feature="reference", more=more)
    a, b, c, d = HASH.hex(), plain(b"other").hex(), SHARED.hex(), MET.hex()
    for name, served, line, comment in (
        ("cache-cold", f"{a} 4", "0", "An engine that starts has seen nothing."),
        ("cache-repeated", f"{a} 4 {a} 4", "0 4", "The same start state again counts every token."),
        ("cache-between", f"{a} 4 {b} 4 {a} 4", "0 0 4", "Others between do not matter."),
        ("cache-other-cap", f"{a} 4 {a} 5", "0 0", "Another cap is another start state."),
        ("cache-same-start", f"{a} 4 {c} 4", "0 4", "What counts is the start state, not the hash."),
        (
            "cache-met",
            f"{a} 4 {d} 6 {a} 4",
            "0 6 4",
            "What counts is the start state, not the cap: all of its own tokens.",
        ),
    ):
        group.accept(name, f"reference-cache {served}", line, "engines", comment, feature="reference")
    for name, call, comment in (
        ("cap-zero", f"reference-tokens {a} 0", "A request has a token at least."),
        ("cap-high", f"reference-tokens {a} {2**31}", "2^31."),
        ("hash-short", f"reference-tokens {a[2:]} 4", "A hash of 31 bytes."),
        ("hash-long", f"reference-tokens {a}00 4", "A hash of 33 bytes."),
        ("cache-cap-zero", f"reference-cache {a} 4 {a} 0", "A request has a token at least."),
    ):
        group.reject(name, call, "schema", "engines", comment, feature="reference")
    return group
