"""Envelopes: what is accepted, and what a change of any kind does to one."""

from __future__ import annotations

from typing import Any

import cbor2
import nacl.signing
import pytest

from mesh.errors import (
    CanonicalError,
    EnvelopeError,
    HeaderError,
    MeshError,
    PayloadError,
    SchemaError,
    SignatureError,
    StructureError,
    UntrustedSteward,
)
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, SigningKey, seal, verify
from mesh.schema.ids import steward_text
from mesh.schema.limits import MAX_ENVELOPE_BYTES, MAX_PAYLOAD_BYTES
from mesh.schema.receipt import Receipt
from tests.schema import handmade, samples
from tests.schema.samples import KEY, OTHER_KEY

TRUST = frozenset({KEY.public})
SEALED = samples.sealed_receipt()
PAYLOAD = handmade.item(samples.receipt())


def protected(**changes: Any) -> bytes:
    """The protected header's bytes; `alg`, `type`, `kid`, `iss` and `sub` may be given, encoded, or None to drop."""
    parts = {
        "alg": handmade.integer(-19),
        "type": handmade.text(RECEIPT_TYPE),
        "kid": handmade.bstr(KEY.public),
        "iss": handmade.text(steward_text(KEY.public)),
        "sub": handmade.text("smollm2-135m"),
        **changes,
    }
    claims = handmade.mapping(
        (handmade.integer(n), parts[k]) for n, k in ((1, "iss"), (2, "sub")) if parts[k] is not None
    )
    pairs = [(1, parts["alg"]), (3, parts["type"]), (4, parts["kid"]), (15, parts.get("claims", claims))]
    return handmade.mapping((handmade.integer(n), value) for n, value in pairs if value is not None)


def signature(
    header: bytes, payload: bytes, key: SigningKey = KEY, *, aad: bytes = b"", context: str = "Signature1"
) -> bytes:
    signed = handmade.array([handmade.text(context), *map(handmade.bstr, (header, aad, payload))])
    return nacl.signing.SigningKey(key.seed).sign(signed).signature


def envelope(
    header: bytes | None = None, payload: bytes = PAYLOAD, unprotected: bytes = b"\xa0", signed: bytes | None = None
) -> bytes:
    """A COSE_Sign1 put together by hand and signed over whatever it then holds."""
    header = protected() if header is None else header
    signed = signature(header, payload) if signed is None else signed
    return b"\xd2" + handmade.array([handmade.bstr(header), unprotected, handmade.bstr(payload), handmade.bstr(signed)])


def check(data: bytes, content_type: str = RECEIPT_TYPE, trust: Any = TRUST) -> Any:
    return verify(data, content_type, trust)


def test_seal_writes_what_the_format_says():
    assert SEALED.envelope == envelope()
    assert SEALED.value.to_cbor() == PAYLOAD


def test_verify_gives_back_what_was_sealed():
    assert check(SEALED.envelope) == SEALED
    assert check(SEALED.envelope).id == SEALED.value.id


def test_other_cose_readers_can_check_it():
    tag = cbor2.loads(SEALED.envelope)
    assert tag.tag == 18
    header, unprotected, payload, signed = tag.value
    assert cbor2.loads(header) == {
        1: -19,
        3: RECEIPT_TYPE,
        4: KEY.public,
        15: {1: steward_text(KEY.public), 2: "smollm2-135m"},
    }
    assert not unprotected
    nacl.signing.VerifyKey(KEY.public).verify(cbor2.dumps(["Signature1", header, b"", payload]), signed)


def test_checkpoints_are_sealed_under_their_own_type():
    sealed = seal(Checkpoint.from_map(samples.checkpoint()), KEY)
    assert verify(sealed.envelope, CHECKPOINT_TYPE, TRUST) == sealed
    assert sealed.id == sealed.value.id
    with pytest.raises(HeaderError, match="content type"):
        check(sealed.envelope)
    with pytest.raises(HeaderError, match="content type"):
        verify(SEALED.envelope, CHECKPOINT_TYPE, TRUST)
    assert check(sealed.envelope.replace(b"", b""), CHECKPOINT_TYPE).value.count == 8


def test_seal_wants_the_stewards_own_key():
    with pytest.raises(SchemaError, match="steward is"):
        seal(Receipt.from_map(samples.receipt()), OTHER_KEY)


def test_sealing_twice_gives_the_same_bytes():
    assert samples.sealed_receipt() == SEALED


@pytest.mark.parametrize("name", ["x", "x" * 256, "é" * 256, "🙂" * 256], ids=["1", "256", "512 bytes", "1024 bytes"])
def test_names_of_any_length_fit(name):
    sealed = samples.sealed_receipt(engine={**samples.engine(), "recipe_id": name})
    assert check(sealed.envelope) == sealed


def test_every_bit_matters():
    good = SEALED.envelope
    outcomes: dict[type[MeshError], int] = {}
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MeshError) as caught:
            check(bytes(data))
        assert isinstance(caught.value, EnvelopeError | UntrustedSteward)
        outcomes[caught.type] = outcomes.get(caught.type, 0) + 1
    assert set(outcomes) == {StructureError, CanonicalError, HeaderError, SignatureError}
    assert sum(outcomes.values()) == len(good) * 8
    # most bits are in the payload, and there the signature is what catches them
    assert outcomes[SignatureError] > len(PAYLOAD) * 8


def test_every_bit_matters_to_a_verifier_who_trusts_everybody():
    class Everybody(frozenset):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            return True

    good = SEALED.envelope
    for bit in range(0, 300 * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EnvelopeError):
            check(bytes(data), trust=Everybody())


def test_every_truncation_is_refused():
    for size in range(len(SEALED.envelope)):
        with pytest.raises(StructureError):
            check(SEALED.envelope[:size])


@pytest.mark.parametrize("tail", [b"\x00", b"\xf6", b"\xff", SEALED.envelope], ids=["item", "null", "break", "itself"])
def test_trailing_bytes_are_refused(tail):
    with pytest.raises(CanonicalError):
        check(SEALED.envelope + tail)


def _spelled_otherwise() -> dict[str, bytes]:
    header, signed = protected(), signature(protected(), PAYLOAD)
    parts = [handmade.bstr(header), b"\xa0", handmade.bstr(PAYLOAD), handmade.bstr(signed)]

    def replaced(at: int, part: bytes) -> bytes:
        return b"\xd2" + handmade.array([*parts[:at], part, *parts[at + 1 :]])

    out = {
        "tag in two bytes": b"\xd8\x12" + handmade.array(parts),
        "tag in nine bytes": b"\xdb" + (18).to_bytes(8, "big") + handmade.array(parts),
        "array in two bytes": b"\xd2" + handmade.array(parts, 1),
        "array without length": b"\xd2\x9f" + b"".join(parts) + b"\xff",
        "unprotected in two bytes": replaced(1, b"\xb8\x00"),
        "unprotected without length": replaced(1, b"\xbf\xff"),
    }
    for at, raw in ((0, header), (2, PAYLOAD), (3, signed)):
        for width in handmade.WIDTHS[1:]:
            wide = handmade.head(handmade.BSTR, len(raw), width) if len(raw) < 1 << 8 * width else None
            if wide is not None and wide + raw != parts[at]:
                out[f"part {at} in {1 + width} bytes"] = replaced(at, wide + raw)
        out[f"part {at} in pieces"] = replaced(at, b"\x5f" + handmade.bstr(raw[:7]) + handmade.bstr(raw[7:]) + b"\xff")
    return out


SPELLINGS = _spelled_otherwise()


@pytest.mark.parametrize("data", SPELLINGS.values(), ids=list(SPELLINGS))
def test_other_spellings_of_the_envelope_are_refused(data):
    with pytest.raises(CanonicalError):
        check(data)


def _headers_spelled_otherwise() -> list[bytes]:
    claims = {1: steward_text(KEY.public), 2: "smollm2-135m"}
    header = {1: -19, 3: RECEIPT_TYPE, 4: KEY.public, 15: claims}
    assert handmade.item(header) == protected()
    return handmade.spellings(header)


def test_other_spellings_of_the_protected_header_are_refused():
    others = _headers_spelled_otherwise()
    assert len(others) > 40
    for header in others:
        # signed as they are: only the spelling is wrong
        with pytest.raises(CanonicalError):
            check(envelope(header))
    with pytest.raises(CanonicalError):
        check(envelope(protected() + b"\x00"))


def test_other_spellings_of_the_payload_are_refused():
    for payload in handmade.spellings(samples.receipt()):
        with pytest.raises(PayloadError):
            check(envelope(payload=payload))
    with pytest.raises(PayloadError):
        check(envelope(payload=PAYLOAD + b"\x00"))


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
        ({33: b"a", 394: [b"proof"], -1: b"b", "a": {256: 1, -1: 2.5}}, "394"),
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


@pytest.mark.parametrize("moved", [1, 3, 4, 15])
def test_a_field_moved_out_of_the_protected_header_is_refused(moved):
    header = cbor2.loads(protected())
    out = {moved: header.pop(moved)}
    with pytest.raises(HeaderError, match="exactly 1, 3, 4 and 15"):
        check(envelope(handmade.item(header), unprotected=handmade.item(out)))
    with pytest.raises(HeaderError, match="394"):
        check(envelope(unprotected=handmade.item(out)))


def test_cose_receipts_are_let_through_and_stripped_for_storing():
    proofs = handmade.item({394: [b"a proof", b"another"]})
    carried = check(envelope(unprotected=proofs))
    assert carried == SEALED
    assert carried.envelope == envelope()
    for other in handmade.spellings({394: [b"a proof", b"another"]}):
        with pytest.raises(CanonicalError):
            check(envelope(unprotected=other))


def test_trust_comes_from_the_caller():
    with pytest.raises(UntrustedSteward, match=steward_text(KEY.public)):
        check(SEALED.envelope, trust={OTHER_KEY.public})
    with pytest.raises(UntrustedSteward):
        check(SEALED.envelope, trust=())
    for trust in ([OTHER_KEY.public, KEY.public], (KEY.public,), {KEY.public: "named"}):
        assert check(SEALED.envelope, trust=trust) == SEALED


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
        (b"\x80", "dictionary"),
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
