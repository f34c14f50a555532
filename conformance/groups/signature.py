"""Ed25519: signatures that some verifiers take and this format does not."""

from __future__ import annotations

from conformance.case import Group
from conformance.digests import b3, content_id, steward_text
from conformance.ed25519 import BASE, IDENTITY, L, P, Point, add, decode, encode, multiply, scalar_of
from conformance.material import KEY, OTHER, Map, protected, receipt, sign1, to_be_signed, trust_file
from conformance.writer import bstr, item, text

RECEIPT = receipt()
PAYLOAD, HEADER = item(RECEIPT), protected()
MESSAGE = to_be_signed(HEADER, PAYLOAD)
SIGNATURE = KEY.sign(MESSAGE)

# A point of order 8: of the two y, the one with the smaller.
TORSION = decode(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))


def signed_with(signature: bytes) -> bytes:
    return sign1(PAYLOAD, HEADER, signature=signature)


def flipped(at: int, bit: int = 1) -> bytes:
    out = bytearray(SIGNATURE)
    out[at] ^= bit
    return bytes(out)


def beyond(times: int) -> bytes:
    s = int.from_bytes(SIGNATURE[32:], "little") + times * L
    return SIGNATURE[:32] + s.to_bytes(32, "little")


def with_r(point: Point, spelling: bytes | None = None) -> bytes:
    """A signature whose equation holds for a nonce that is a multiple of the group's order."""
    return KEY.answer(spelling or encode(point), 0, MESSAGE)


def cases() -> Group:
    group = Group("signature")
    call = "envelope receipt input.cbor trust.txt"
    for name, data, comment in (
        ("flipped-r", signed_with(flipped(0)), "A bit of R is another."),
        ("flipped-s", signed_with(flipped(32)), "A bit of S is another."),
        ("flipped-last", signed_with(flipped(63, 0x10)), "A high bit of S is another."),
        ("zeros", signed_with(bytes(64)), "64 zero bytes."),
        ("other-key", sign1(PAYLOAD, HEADER, key=OTHER), "Signed by another key than is named."),
        ("other-payload", sign1(item(receipt(seq=8)), HEADER, signature=SIGNATURE), "That of another payload."),
        (
            "other-header", sign1(PAYLOAD, protected(sub=text("smollm2-360m")), signature=SIGNATURE),
            "The signature of another header.",
        ),
        ("bare-payload", signed_with(KEY.sign(PAYLOAD)), "The payload signed without the structure around it."),
        (
            "external-data", signed_with(KEY.sign(to_be_signed(HEADER, PAYLOAD, aad=b"x"))),
            "Signed with external data, which is empty here.",
        ),
        (
            "other-context", signed_with(KEY.sign(to_be_signed(HEADER, PAYLOAD, context="Signature"))),
            "Signed as one of several signatures.",
        ),
        ("no-header", signed_with(KEY.sign(to_be_signed(b"", PAYLOAD))), "Signed without the protected header."),
        (
            "whole", signed_with(KEY.sign(b"\x84" + MESSAGE[1:] + bstr(b""))), "Signed over more than the structure.",
        ),
        ("s-plus-order", signed_with(beyond(1)), "S with the group's order added: the same equation."),
        ("s-plus-orders", signed_with(beyond(7)), "S with seven times the group's order added."),
        ("r-neutral", signed_with(with_r(IDENTITY)), "R is the neutral point, and the equation holds."),
        (
            "r-neutral-spelling", signed_with(with_r(IDENTITY, (P + 1).to_bytes(32, "little"))),
            "R is the neutral point in another spelling.",
        ),
        ("r-small-order", signed_with(small_r()), "R is a point of order 8: it only holds times the cofactor."),
    ):  # fmt: skip
        files = {"input.cbor": data, "trust.txt": trust_file()}
        group.reject(name, call, "signature", "envelope.5", comment, files)
    _mixed(group, call)
    return group


def small_r() -> bytes:
    return KEY.answer(encode(TORSION), 0, MESSAGE)


def _mixed(group: Group, call: str) -> None:
    """A key with a part of order 8: [8][S]B = [8]R + [8][k]A always holds, and [S]B = R + [k]A for one k in eight.
    (k is taken modulo the group's order first, as verifiers do.)"""
    public = encode(add(multiply(KEY.secret, BASE), TORSION))
    value = receipt(steward=public)
    found: dict[bool, tuple[Map, bytes]] = {}
    seq = 7
    while len(found) < 2:
        value = receipt(steward=public, seq=seq)
        header = protected(kid=bstr(public), iss=text(steward_text(public)))
        message = to_be_signed(header, item(value))
        nonce = scalar_of(b"nonce", message)
        r = encode(multiply(nonce, BASE))
        holds = scalar_of(r, public, message) % 8 == 0
        found.setdefault(holds, (value, sign1(item(value), header, signature=KEY.answer(r, nonce, message, public))))
        seq += 1
    trust = f"{steward_text(public)}\n".encode()
    value, data = found[False]
    comment = "A key with a part of order 8, and a signature that only holds times the cofactor."
    group.reject("cofactor", call, "signature", "envelope.5", comment, {"input.cbor": data, "trust.txt": trust})
    value, data = found[True]
    comment = "A key with a part of order 8, and a signature that holds all the same: such a key is not refused."
    line = b3(content_id("receipt", value))
    group.accept("mixed-key", call, line, "envelope.5", comment, {"input.cbor": data, "trust.txt": trust})
