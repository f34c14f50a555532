"""Envelopes: what is accepted, and every way of saying the same thing otherwise."""

from __future__ import annotations

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
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, seal, verify
from mesh.schema.ids import steward_text
from mesh.schema.receipt import Receipt
from tests.schema import handmade, samples
from tests.schema.envelopes import PAYLOAD, SEALED, TRUST, check, envelope, protected, signature
from tests.schema.samples import KEY, OTHER_KEY


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
