"""One fault at a time, in the order in which a check meets them, and what many at once are called."""

from __future__ import annotations

from typing import Any

import cbor2
import nacl.signing
import pytest

from mesh.errors import (
    CanonicalError,
    HeaderError,
    PayloadError,
    SignatureError,
    StructureError,
    UntrustedSteward,
)
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE
from mesh.schema.ids import steward_text
from mesh.schema.limits import MAX_ENVELOPE_BYTES, MAX_PAYLOAD_BYTES
from tests.schema import handmade, samples
from tests.schema.envelopes import PAYLOAD, SEALED, check, envelope, protected, signature
from tests.schema.samples import KEY, OTHER_KEY


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "malformed"),
        (b"\x00", "not a COSE_Sign1"),
        (PAYLOAD, "not a COSE_Sign1"),
        (envelope()[1:], "not a COSE_Sign1"),
        (b"\xd1" + envelope()[1:], "not a COSE_Sign1"),
        (b"\xd8\x62" + envelope()[1:], "not a COSE_Sign1"),
        (b"\xd9\xd9\xf7" + envelope(), "tag"),
        (b"\xd2\x84\x40\xa0\x40", "malformed"),
        (b"\xd2\x83\x40\xa0\x40", "four"),
        (b"\xd2\xa0", "four"),
        (b"\xd2\x84\xa0\xa0\x40\x58\x40" + bytes(64), "byte string and a map"),
        (b"\xd2\x84\x40\x80\x40\x58\x40" + bytes(64), "byte string and a map"),
        (b"\xd2\x84\x40\x40\x40\x58\x40" + bytes(64), "byte string and a map"),
        (b"\xd2\x84\x40\xa0\xf6\x58\x40" + bytes(64), "payload"),
        (b"\xd2\x84\x40\xa0\xa0\x58\x40" + bytes(64), "payload"),
        (envelope(signed=bytes(63)), "64 bytes"),
        (envelope(signed=bytes(65)), "64 bytes"),
        (envelope(signed=b""), "64 bytes"),
        (envelope(b""), "protected header"),
        (envelope(b"\xff"), "protected header"),
        (envelope(b"\x80"), "not a map"),
        (envelope(b"\xd2\xa0"), "not a map"),
        (envelope(b"\xa2\x01\x32\x01\x32"), "duplicate key"),
        (envelope(protected(sub=handmade.text("x" * 2000))), "too long"),
        (envelope(payload=bytes(MAX_PAYLOAD_BYTES + 1)), "payload"),
        (envelope() + bytes(MAX_ENVELOPE_BYTES), "too long"),
        (envelope(unprotected=b"\xa2\x01\x00\x01\x00"), "duplicate key"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_structure(data, fault):
    with pytest.raises(StructureError, match=fault):
        check(data)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (protected(alg=None), "exactly 1, 3, 4 and 15"),
        (protected(type=None), "exactly 1, 3, 4 and 15"),
        (protected(kid=None), "exactly 1, 3, 4 and 15"),
        (protected(claims=None), "exactly 1, 3, 4 and 15"),
        (b"\xa0", "exactly 1, 3, 4 and 15"),
        (b"\xa5" + protected()[1:] + b"\x18\x21\x00", "exactly 1, 3, 4 and 15"),
        (b"\xa5\x01\x32\x02\x81\x18\x21" + protected()[3:], "exactly 1, 3, 4 and 15"),
        (
            b"\xa4" + protected()[1:-14].replace(b"\x01\x32", b"\x02\x32", 1) + protected()[-14:],
            "exactly 1, 3, 4 and 15",
        ),
        (protected(alg=handmade.integer(-8)), "algorithm is -8, expected -19"),
        (protected(alg=handmade.integer(-7)), "algorithm is -7"),
        (protected(alg=handmade.integer(0)), "algorithm is 0"),
        (protected(alg=handmade.integer(-(2**64))), "algorithm"),
        (protected(alg=handmade.text("Ed25519")), "algorithm"),
        (protected(alg=b"\xf9\xcc\xc0"), "algorithm is -19.0"),
        (protected(alg=handmade.array([handmade.integer(-19)] * 1500)), "algorithm"),
        (protected(type=handmade.bstr(RECEIPT_TYPE.encode())), "content type must be text"),
        (protected(type=handmade.integer(61)), "content type must be text"),
        (protected(type=handmade.text("application/cbor")), "content type is 'application/cbor', expected"),
        (protected(type=handmade.text(CHECKPOINT_TYPE)), "content type"),
        (protected(type=handmade.text(RECEIPT_TYPE + "\n")), "content type"),
        (protected(type=handmade.text("x" * 1500)), "content type"),
        (protected(kid=handmade.bstr(KEY.public[:31])), "32 bytes"),
        (protected(kid=handmade.bstr(KEY.public + b"\0")), "32 bytes"),
        (protected(kid=handmade.text("k" * 32)), "32 bytes"),
        (protected(iss=None), "exactly issuer"),
        (protected(sub=None), "exactly issuer"),
        (protected(claims=handmade.array([])), "exactly issuer"),
        (protected(claims=handmade.item({1: "a", 2: "b", 6: 1})), "exactly issuer"),
        (protected(claims=handmade.item({"1": "a", "2": "b"})), "exactly issuer"),
        (protected(claims=handmade.mapping([(b"\x02", b"\x61a"), (b"\xf5", b"\x61b")])), "exactly issuer"),
        (protected(iss=handmade.bstr(b"a")), "must be text"),
        (protected(sub=handmade.integer(1)), "must be text"),
        (protected(iss=handmade.text(steward_text(OTHER_KEY.public))), "issuer is"),
        (protected(iss=handmade.text(steward_text(KEY.public).upper())), "issuer is"),
        (protected(iss=handmade.text(KEY.public.hex())), "issuer is"),
        (protected(kid=handmade.bstr(OTHER_KEY.public)), "issuer is"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_header(header, fault):
    with pytest.raises(HeaderError, match=fault) as caught:
        check(envelope(header))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("unprotected", "fault"),
    [
        ({1: -19}, "394"),
        ({4: KEY.public}, "394"),
        ({15: {1: "a"}}, "394"),
        ({"note": 1}, "394"),
        ({394: [b"proof"], 395: 1}, "394"),
        ({394: []}, "array of byte strings"),
        ({394: b"proof"}, "array of byte strings"),
        ({394: ["proof"]}, "array of byte strings"),
        ({394: [b"proof", 1]}, "array of byte strings"),
        ({394: {1: b"proof"}}, "array of byte strings"),
        ({33: b"a", 394: [b"proof"], -1: b"b", "a": {256: 1, -1: 2}}, "394"),
    ],
    ids=str,
)
def test_unprotected_header_holds_receipts_alone(unprotected, fault):
    with pytest.raises(HeaderError, match=fault):
        check(envelope(unprotected=handmade.item(unprotected)))


def test_header_keys_are_ordered_bytewise_and_not_by_length():
    more = protected()[1:] + b"\x18\x21\x00" + b"\x20\x00"
    with pytest.raises(HeaderError, match="exactly 1, 3, 4 and 15"):
        check(envelope(b"\xa6" + more))
    with pytest.raises(CanonicalError):
        check(envelope(b"\xa6" + more[:-5] + b"\x20\x00" + b"\x18\x21\x00"))
    with pytest.raises(CanonicalError):
        check(envelope(unprotected=b"\xa2\x20\x00\x18\x21\x00"))


def test_unprotected_header_key_that_only_equals_an_integer_is_refused():
    with pytest.raises(HeaderError, match="394"):
        check(envelope(unprotected=handmade.mapping([(bytes.fromhex("f95e28"), handmade.item([b"proof"]))])))  # 394.0


@pytest.mark.parametrize("moved", [1, 3, 4, 15])
def test_a_field_moved_out_of_the_protected_header_is_refused(moved):
    header = cbor2.loads(protected())
    out = {moved: header.pop(moved)}
    with pytest.raises(HeaderError, match="exactly 1, 3, 4 and 15"):
        check(envelope(handmade.item(header), unprotected=handmade.item(out)))
    with pytest.raises(HeaderError, match="394"):
        check(envelope(unprotected=handmade.item(out)))


@pytest.mark.parametrize(
    "signed",
    [
        bytes(64),
        signature(protected(), PAYLOAD, OTHER_KEY),
        signature(protected(), PAYLOAD, aad=b"a"),
        signature(protected(), PAYLOAD, context="Signature"),
        signature(protected(), PAYLOAD, context="CounterSignature"),
        signature(protected(), PAYLOAD[:-1]),
        signature(b"", PAYLOAD),
        nacl.signing.SigningKey(KEY.seed).sign(PAYLOAD).signature,
    ],
    ids=[
        "zeros",
        "other key",
        "external aad",
        "other context",
        "counter",
        "other payload",
        "no header",
        "bare payload",
    ],
)
def test_signature_is_over_the_sig_structure(signed):
    with pytest.raises(SignatureError):
        check(envelope(signed=signed))


def _payload(**changes: Any) -> bytes:
    return handmade.item({k: v for k, v in {**samples.receipt(), **changes}.items() if v is not None})


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b"", "malformed"),
        (b"\x80", "expected a map, got an array"),
        (handmade.item(samples.checkpoint()), "receipt"),
        (_payload(seq=-1), "seq"),
        (_payload(v="mesh/2"), "v"),
        (_payload(energy=None), "energy: missing"),
        (_payload(extra=1), "extra: unknown field"),
        (_payload(steward=OTHER_KEY.public), "the header says"),
        (_payload(engine={**samples.engine(), "recipe_id": "another"}), "names 'another', the header 'smollm2-135m'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_payload_must_be_what_the_header_names(payload, fault):
    with pytest.raises(PayloadError, match=fault):
        check(envelope(payload=payload))


def test_repeated_keys_under_a_good_signature_are_refused():
    fields = sorted((handmade.text(k), handmade.item(v)) for k, v in samples.receipt().items())
    again = (handmade.text("max_tokens"), handmade.integer(9))
    at = fields.index((handmade.text("max_tokens"), handmade.integer(256)))
    for pairs in ([*fields, again], [*fields[: at + 1], again, *fields[at + 1 :]], [again, *fields]):
        with pytest.raises(PayloadError, match="duplicate key"):
            check(envelope(payload=handmade.mapping(pairs)))


# Faults of every step, mildest last. Whatever comes with it, the earliest is the one that is told.
def test_the_first_fault_wins():
    wide = handmade.item({1: -19, 3: RECEIPT_TYPE, 4: KEY.public, 15: {1: steward_text(KEY.public), 2: "smollm2-135m"}})
    wide = b"\xb8\x04" + wide[1:]
    stranger = {
        "kid": handmade.bstr(OTHER_KEY.public),
        "iss": handmade.text(steward_text(OTHER_KEY.public)),
    }
    bad_type = handmade.text("application/cbor")
    bad_payload = _payload(seq=-1)
    zeros = bytes(64)

    steps = [
        (StructureError, envelope(wide, bad_payload, signed=bytes(63))),
        (StructureError, envelope(b"\xff", bad_payload, signed=zeros) + b"\0"),
        (CanonicalError, envelope(protected(type=bad_type, **stranger), bad_payload, signed=zeros) + b"\0"),
        (CanonicalError, envelope(wide, bad_payload, signed=zeros)),
        (CanonicalError, envelope(protected(alg=handmade.integer(-8, 2), **stranger), bad_payload, signed=zeros)),
        (HeaderError, envelope(protected(type=bad_type, **stranger), bad_payload, signed=zeros)),
        (HeaderError, envelope(protected(**stranger), bad_payload, b"\xa1\x01\x00", signed=zeros)),
        (UntrustedSteward, envelope(protected(**stranger), bad_payload, signed=zeros)),
        (SignatureError, envelope(protected(), bad_payload, signed=zeros)),
        (PayloadError, envelope(protected(), bad_payload)),
    ]
    for error, data in steps:
        with pytest.raises(error):
            check(data)
    assert check(envelope()) == SEALED
