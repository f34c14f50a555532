"""Envelopes: each place in which one can be of another shape, in another spelling, or say something else."""

from __future__ import annotations

from typing import Any

from conformance.case import Group
from conformance.digests import b3, content_id, steward_text
from conformance.material import (
    CHECKPOINT_TYPE,
    KEY,
    OTHER,
    RECEIPT_TYPE,
    Serve,
    checkpoint,
    protected,
    receipt,
    sign1,
    signed_checkpoint,
    signed_receipt,
    small_checkpoint,
    small_engine,
    small_receipt,
    to_be_signed,
    trust_file,
)
from conformance.sizes import ENVELOPE_BYTES, PAYLOAD_BYTES, PROTECTED_BYTES, receipt_of
from conformance.writer import (
    ARRAY,
    BREAK,
    BSTR,
    MAP,
    NULL,
    array,
    bstr,
    head,
    indefinite,
    integer,
    item,
    mapping,
    tag,
    text,
)

RECEIPT = receipt()
PAYLOAD = item(RECEIPT)
HEADER = protected()
GOOD = signed_receipt(RECEIPT)
SIGNATURE = KEY.sign(to_be_signed(HEADER, PAYLOAD))
COSE_RECEIPTS = 394

ISSUER, SUBJECT = (integer(1), text(steward_text(KEY.public))), (integer(2), text("smollm2-135m"))
HEADER_PAIRS = [
    (integer(1), integer(-19)),
    (integer(3), text(RECEIPT_TYPE)),
    (integer(4), bstr(KEY.public)),
    (integer(15), mapping([ISSUER, SUBJECT])),
]


def four(*parts: bytes) -> bytes:
    return tag(18, array(parts))


def header_with(*pairs: tuple[bytes, bytes], drop: int | None = None) -> bytes:
    """The protected header with other entries, in canonical order."""
    kept = [pair for pair in HEADER_PAIRS if drop is None or pair[0] != integer(drop)]
    return mapping(sorted([*kept, *pairs]))


def under(header: bytes, **rest: Any) -> bytes:
    """The receipt under another protected header, signed over it."""
    return sign1(PAYLOAD, header, **rest)


def header_of(size: int) -> bytes:
    """The protected header with a subject so long that it takes `size` bytes."""
    subject = size - len(protected(sub=text("s" * 1000))) + 1000
    return protected(sub=text("s" * subject))


def padded(size: int) -> bytes:
    """The receipt with a COSE Receipt so long that the envelope takes `size` bytes."""
    base = len(under(HEADER, unprotected=item({COSE_RECEIPTS: [bytes(20_000)]}))) - 20_000
    return under(HEADER, unprotected=item({COSE_RECEIPTS: [bytes(size - base)]}))


P, H, S = bstr(PAYLOAD), bstr(HEADER), bstr(SIGNATURE)

STRUCTURE = [
    ("empty", b"", "No bytes."),
    ("garbage", b"not an envelope", "Text that is no CBOR."),
    ("truncated", GOOD[:-1], "The last byte is missing."),
    ("half", GOOD[: len(GOOD) // 2], "Half of it is missing."),
    ("no-tag", GOOD[1:], "Without the tag."),
    ("tag-17", tag(17, GOOD[1:]), "A COSE_Mac0."),
    ("tag-98", tag(98, GOOD[1:]), "A COSE_Sign."),
    ("tag-twice", tag(18, GOOD), "The tag twice."),
    ("tag-61", tag(61, GOOD), "Within the tag of a CWT."),
    ("three", four(H, b"\xa0", P), "Without a signature."),
    ("five", four(H, b"\xa0", P, S, S), "With a fifth element."),
    ("map", tag(18, mapping([(integer(0), H), (integer(1), P)])), "A map where the array has to be."),
    ("bytes", tag(18, bstr(GOOD[1:])), "A byte string where the array has to be."),
    ("protected-map", four(HEADER, b"\xa0", P, S), "A protected header that is not in a byte string."),
    ("protected-text", four(text("{}"), b"\xa0", P, S), "A protected header that is text."),
    ("protected-empty", under(b""), "A protected header of no bytes."),
    ("protected-array", under(item([1])), "A protected header that holds an array."),
    ("protected-cut", under(HEADER[:-1]), "A protected header that breaks off."),
    ("protected-not-utf8", under(protected(sub=text(b"\xff"))), "A subject that is not UTF-8."),
    ("protected-twice", under(mapping(sorted([*HEADER_PAIRS, HEADER_PAIRS[0]]))), "The algorithm twice."),
    ("protected-tag", under(header_with((integer(15), tag(61, HEADER_PAIRS[3][1])), drop=15)), "A tag in the header."),
    ("protected-long", under(header_of(PROTECTED_BYTES + 1)), "A protected header of 2049 bytes."),
    ("protected-tag-key", under(header_with((tag(1, integer(0)), integer(0)))), "A tag as a label in the header."),
    ("protected-deep", under(header_with((integer(99), b"\x81" * 1000 + b"\x80"))), "A header that is 1000 deep."),
    ("unprotected-array", four(H, b"\x80", P, S), "An unprotected header that is an array."),
    ("unprotected-bytes", four(H, bstr(b"\xa0"), P, S), "An unprotected header in a byte string."),
    (
        "unprotected-twice", four(H, mapping([(integer(COSE_RECEIPTS), array([bstr(b"p")]))] * 2), P, S),
        "An unprotected entry twice.",
    ),
    (
        "unprotected-deep", four(H, mapping([(integer(COSE_RECEIPTS), b"\x81" * 1000 + b"\x80")]), P, S),
        "An unprotected header that is 1000 deep.",
    ),
    ("payload-null", four(H, b"\xa0", NULL, S), "A detached payload."),
    ("payload-text", four(H, b"\xa0", text("{}"), S), "A payload that is text."),
    ("payload-map", four(H, b"\xa0", PAYLOAD, S), "A payload that is not in a byte string."),
    ("payload-long", sign1(bytes(32769), HEADER), "A payload of 32769 bytes."),
    ("signature-short", four(H, b"\xa0", P, bstr(SIGNATURE[:-1])), "A signature of 63 bytes."),
    ("signature-long", four(H, b"\xa0", P, bstr(SIGNATURE + b"\x00")), "A signature of 65 bytes."),
    ("signature-none", four(H, b"\xa0", P, bstr(b"")), "A signature of no bytes."),
    ("signature-text", four(H, b"\xa0", P, text("s" * 64)), "A signature that is text."),
    ("too-long", padded(ENVELOPE_BYTES + 1), "65537 bytes, most of them a COSE Receipt."),
]  # fmt: skip


def spelled(protected: bytes = H, unprotected: bytes = b"\xa0", payload: bytes = P, signature: bytes = S) -> bytes:
    return four(protected, unprotected, payload, signature)


REVERSED = mapping(HEADER_PAIRS[::-1])

CANONICAL = [
    ("trailing-byte", GOOD + b"\x00", "A byte after it."),
    ("trailing-copy", GOOD * 2, "The same envelope again."),
    ("wide-tag", head(6, 18, 1) + GOOD[1:], "The tag in two bytes."),
    ("wide-array", GOOD[:1] + head(ARRAY, 4, 1) + GOOD[2:], "The length of the array in two bytes."),
    ("wide-protected", spelled(protected=bstr(HEADER, 2)), "The length of the protected header in three bytes."),
    ("wide-unprotected", spelled(unprotected=head(MAP, 0, 1)), "The length of the empty map in two bytes."),
    ("wide-payload", spelled(payload=bstr(PAYLOAD, 4)), "The length of the payload in five bytes."),
    ("wide-signature", spelled(signature=bstr(SIGNATURE, 2)), "The length of the signature in three bytes."),
    ("indefinite-array", GOOD[:1] + b"\x9f" + GOOD[2:] + BREAK, "An array of indefinite length."),
    ("indefinite-unprotected", spelled(unprotected=indefinite(MAP, b"")), "A map of indefinite length."),
    ("indefinite-payload", spelled(payload=indefinite(BSTR, P)), "A payload in chunks."),
    ("indefinite-protected", spelled(protected=indefinite(BSTR, H)), "A protected header in chunks."),
    ("header-order", under(REVERSED), "The header's entries in another order."),
    ("header-trailing", under(HEADER + b"\x00"), "A byte after the header's map."),
    ("header-wide-map", under(head(MAP, 4, 1) + HEADER[1:]), "The length of the header's map in two bytes."),
    ("header-indefinite", under(indefinite(MAP, HEADER[1:])), "A header's map of indefinite length."),
    ("header-wide-label", under(HEADER[:1] + integer(1, 1) + HEADER[2:]), "A label in two bytes."),
    ("header-wide-algorithm", under(protected(alg=integer(-19, 1))), "The algorithm in two bytes."),
    ("header-wide-float", under(protected(alg=b"\xfb\xc0\x33" + bytes(6))), "-19.0 as a float of nine bytes."),
    ("header-wide-type", under(protected(type=text(RECEIPT_TYPE, 2))), "The content type's length in three bytes."),
    ("header-wide-key", under(protected(kid=bstr(KEY.public, 2))), "The key id's length in three bytes."),
    ("header-wide-subject", under(protected(sub=text("smollm2-135m", 1))), "The subject's length in two bytes."),
    (
        "claims-order",
        under(protected(claims=mapping([SUBJECT, ISSUER]))),
        "The claims in another order.",
    ),
    (
        "unprotected-wide",
        under(HEADER, unprotected=mapping([(integer(COSE_RECEIPTS, 4), array([bstr(b"proof")]))])),
        "The label of the COSE Receipts in five bytes.",
    ),
]  # fmt: skip
del REVERSED


PROOFS = (integer(COSE_RECEIPTS), array([bstr(b"proof")]))

HEADERS = [
    ("alg-eddsa", under(protected(alg=integer(-8))), "The older EdDSA, which names no curve."),
    ("alg-es256", under(protected(alg=integer(-7))), "ECDSA."),
    ("alg-none", under(protected(alg=integer(0))), "An algorithm that is reserved."),
    ("alg-text", under(protected(alg=text("Ed25519"))), "The algorithm by name."),
    ("alg-float", under(protected(alg=b"\xf9\xcc\xc0")), "-19.0 as a float."),
    ("alg-float-single", under(protected(alg=b"\xfa\xc1\x98\x00\x01")), "About -19 as a single float, which it needs."),
    ("alg-too-low", under(protected(alg=b"\x3b\x80" + bytes(7))), "-2^63-1, which no value of this format has."),
    ("alg-missing", under(protected(alg=None)), "Without an algorithm."),
    ("type-missing", under(protected(type=None)), "Without a content type."),
    ("type-other", under(protected(type=text("application/cbor"))), "Another content type."),
    ("type-case", under(protected(type=text("application/Mesh-Receipt+cbor"))), "A capital in the content type."),
    ("type-number", under(protected(type=integer(60))), "The content type by number."),
    ("type-parameter", under(protected(type=text(RECEIPT_TYPE + "; v=1"))), "A content type with a parameter."),
    ("kid-missing", under(protected(kid=None)), "Without a key id."),
    ("kid-short", under(protected(kid=bstr(KEY.public[:31]))), "A key id of 31 bytes."),
    ("kid-text", under(protected(kid=text(steward_text(KEY.public)))), "A key id that is text."),
    ("claims-missing", under(protected(claims=None)), "Without claims."),
    ("claims-bytes", under(protected(claims=bstr(mapping([ISSUER, SUBJECT])))), "Claims in a byte string."),
    ("issuer-missing", under(protected(claims=mapping([SUBJECT]))), "Claims without an issuer."),
    ("subject-missing", under(protected(claims=mapping([ISSUER]))), "Claims without a subject."),
    ("subject-bytes", under(protected(sub=bstr(b"smollm2-135m"))), "A subject that is no text."),
    (
        "claims-expiry", under(protected(claims=mapping([ISSUER, SUBJECT, (integer(4), integer(2**40))]))),
        "Claims with an expiry.",
    ),
    (
        "issuer-other", under(protected(iss=text(steward_text(OTHER.public)))),
        "An issuer that is not the text form of the key id.",
    ),
    ("issuer-upper-case", under(protected(iss=text("ed25519:" + KEY.public.hex().upper()))), "Hex digits in capitals."),
    ("issuer-bare", under(protected(iss=text(KEY.public.hex()))), "The issuer without its prefix."),
    ("critical", under(header_with((integer(2), array([integer(1)])))), "A list of critical entries."),
    ("extra", under(header_with((integer(5), bstr(bytes(12))))), "A fifth entry."),
    ("extra-text", under(header_with((text("note"), text("x")))), "A fifth entry with a label of text."),
    ("extra-null", under(header_with((integer(99), NULL))), "A fifth entry that is null."),
    ("unprotected-kid", under(HEADER, unprotected=item({4: KEY.public})), "An unprotected key id."),
    ("unprotected-alg", under(HEADER, unprotected=item({1: -19})), "An unprotected algorithm."),
    (
        "kid-moved", under(protected(kid=None), unprotected=item({4: KEY.public})),
        "The key id in the unprotected header only.",
    ),
    (
        "receipts-and-more", under(HEADER, unprotected=mapping([(integer(1), integer(-19)), PROOFS])),
        "COSE Receipts and something else.",
    ),
    ("receipts-empty", under(HEADER, unprotected=item({COSE_RECEIPTS: []})), "No COSE Receipt at all."),
    ("receipts-bytes", under(HEADER, unprotected=item({COSE_RECEIPTS: b"proof"})), "A COSE Receipt without its array."),
    ("receipts-text", under(HEADER, unprotected=item({COSE_RECEIPTS: ["proof"]})), "A COSE Receipt that is text."),
    ("receipts-395", under(HEADER, unprotected=item({395: [b"proof"]})), "The label beside that of COSE Receipts."),
    ("receipts-label-text", under(HEADER, unprotected=item({"394": [b"proof"]})), "The label as text."),
]  # fmt: skip


def with_payload(data: bytes, **rest: Any) -> bytes:
    return sign1(data, HEADER, **rest)


WRONG_PAYLOADS = [
    ("payload-empty", with_payload(b""), "A payload of no bytes."),
    ("payload-no-cbor", with_payload(b"\xff\xff"), "A payload that is no CBOR."),
    ("payload-not-a-map", with_payload(item([RECEIPT])), "A payload that is an array."),
    ("payload-order", with_payload(head(MAP, len(RECEIPT)) + b"".join(sorted(
        (item(k) + item(v) for k, v in RECEIPT.items()), reverse=True
    ))), "A payload with its fields in another order."),
    ("payload-wide", with_payload(PAYLOAD.replace(b"\x63seq\x07", b"\x63seq\x18\x07")), "A wide integer."),
    ("payload-trailing", with_payload(PAYLOAD + b"\x00"), "A byte after the payload's map."),
    ("payload-twice", with_payload(head(MAP, len(RECEIPT) + 1) + PAYLOAD[1:] + b"\x63seq\x07"), "A field twice."),
    ("payload-field-missing", with_payload(item(receipt(seq=None))), "A receipt without its number."),
    ("payload-field-unknown", with_payload(item(receipt(note="x"))), "A receipt with an unknown field."),
    ("payload-version", with_payload(item(receipt(v="mesh/2"))), "A receipt of another version."),
    ("payload-prev", with_payload(item(receipt(prev=None))), "A receipt that breaks step 4 of its own."),
    ("payload-energy", with_payload(item(receipt(energy__uj=1))), "A receipt whose energy does not add up."),
    ("payload-checkpoint", with_payload(item(checkpoint())), "A checkpoint under the type of a receipt."),
    ("payload-bare-request", with_payload(item({"v": "mesh/1"})), "A map that is nothing."),
    ("steward-other", with_payload(item(receipt(steward=OTHER.public))), "A receipt of another steward."),
    ("subject-other", under(protected(sub=text("smollm2-360m"))), "A subject that is not the recipe."),
    ("subject-longest-header", under(header_of(PROTECTED_BYTES)), "The same, in a protected header of 2048 bytes."),
    ("subject-checkpoint", under(protected(sub=text("checkpoint"))), "The subject of a checkpoint."),
]  # fmt: skip


def cases() -> Group:
    group = Group("envelope")
    _good(group)
    faults = ((1, "structure", STRUCTURE), (2, "canonical", CANONICAL), (3, "header", HEADERS))
    for rule, error, listed in (*faults, (6, "payload", WRONG_PAYLOADS)):
        for name, data, comment in listed:
            files = {"input.cbor": data, "trust.txt": trust_file()}
            call = "envelope receipt input.cbor trust.txt"
            group.reject(f"{error}-{name}", call, error, f"envelope.{rule}", comment, files)
    _types(group)
    return group


def _good(group: Group) -> None:
    worked = Serve()
    for name, value, data, comment in (
        ("worked", worked.receipt, worked.envelope, "The worked receipt of SPEC.md."),
        ("receipt", RECEIPT, GOOD, "A receipt with every field."),
        ("receipt-minimal", SMALL, signed_receipt(SMALL), "A receipt without any optional field."),
        ("subject-unicode", NAMED, signed_receipt(NAMED), "A recipe's name of 256 characters of four bytes."),
        (
            "cose-receipt", RECEIPT, under(HEADER, unprotected=item({COSE_RECEIPTS: [b"proof"]})),
            "With a COSE Receipt, of which nothing is asked here.",
        ),
        (
            "cose-receipts", RECEIPT, under(HEADER, unprotected=item({COSE_RECEIPTS: [b"", bytes(20_000)]})),
            "With two, one of them long.",
        ),
        ("longest", RECEIPT, padded(ENVELOPE_BYTES), "65536 bytes, most of them a COSE Receipt."),
        ("payload-longest", LONGEST, signed_receipt(LONGEST), "A payload of 32768 bytes."),
    ):  # fmt: skip
        files = {"input.cbor": data, "trust.txt": trust_file()}
        line = b3(content_id("receipt", value))
        group.accept(name, "envelope receipt input.cbor trust.txt", line, "envelope.7", comment, files)
    for name, value, comment in (
        ("checkpoint", checkpoint(), "A checkpoint with every field."),
        ("checkpoint-empty", small_checkpoint(), "A checkpoint of no receipts."),
    ):
        files = {"input.cbor": signed_checkpoint(value), "trust.txt": trust_file()}
        line = b3(content_id("checkpoint", value))
        group.accept(name, "envelope checkpoint input.cbor trust.txt", line, "envelope.7", comment, files)


SMALL = small_receipt()
LONGEST = receipt_of(PAYLOAD_BYTES)
NAMED = small_receipt(engine=small_engine(recipe_id="🙂" * 256))


def _types(group: Group) -> None:
    """A receipt is no checkpoint, whatever its header says."""
    call = "envelope checkpoint input.cbor trust.txt"
    of_checkpoint = protected(type=text(CHECKPOINT_TYPE), sub=text("checkpoint"))
    other_subject = sign1(item(checkpoint()), protected(type=text(CHECKPOINT_TYPE), sub=text("smollm2-135m")))
    for name, error, rule, asked, data, comment in (
        ("header-receipt-for-checkpoint", "header", 3, call, GOOD, "A receipt where a checkpoint is asked for."),
        (
            "header-checkpoint-for-receipt", "header", 3, call.replace("checkpoint", "receipt"),
            signed_checkpoint(checkpoint()), "A checkpoint where a receipt is asked for.",
        ),
        (
            "payload-receipt-in-checkpoint", "payload", 6, call, sign1(PAYLOAD, of_checkpoint),
            "A receipt under the type of a checkpoint.",
        ),
        ("payload-checkpoint-subject", "payload", 6, call, other_subject, "A checkpoint with a recipe's subject."),
        (
            "payload-checkpoint-head", "payload", 6, call, signed_checkpoint(checkpoint(head=None)),
            "A checkpoint that breaks step 3 of its own.",
        ),
    ):  # fmt: skip
        group.reject(name, asked, error, f"envelope.{rule}", comment, {"input.cbor": data, "trust.txt": trust_file()})
