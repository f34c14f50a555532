"""Chains: what is accepted, and every way of getting a block in, out or out of place."""

from __future__ import annotations

import os

import pytest
from blake3 import blake3

from mesh.errors import (
    CanonicalError,
    EncodingError,
    Forbidden,
    HeaderError,
    MeshError,
    PayloadError,
    SchemaError,
    SignatureError,
    StructureError,
    UntrustedSteward,
)
from mesh.grant.chain import Grant, verify_grant, verify_unvouched
from mesh.grant.making import attenuate, close, issue
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.envelope import CHECKPOINT_TYPE, RECEIPT_TYPE, SigningKey, seal, verify
from mesh.schema.limits import MAX_GRANT_BYTES
from mesh.schema.receipt import Receipt
from mesh.schema.trust import Trust, Window
from tests.grant import chains
from tests.grant.chains import BEARERS, ISSUER, NOW_NS, STEWARD, STRANGER, TRUST, block, header, later, payload, whole
from tests.schema import handmade, samples

A, B, C = BEARERS[:3]
FIRST = block(ISSUER, payload(A))
ONE = whole([FIRST], A)


def check(data: bytes) -> object:
    return verify_grant(data, TRUST)


def block_id(signer: SigningKey, content: bytes, parent: bytes = b"") -> bytes:
    signed = chains.signed_bytes(header(signer), content, parent)
    return blake3(signed, derive_key_context="mesh/1 grant-block").digest()


FIRST_ID = block_id(ISSUER, payload(A))
SECOND = block(A, later(B, {"max-tokens": 5}), FIRST_ID)
SECOND_ID = block_id(A, later(B, {"max-tokens": 5}), FIRST_ID)
THIRD = block(B, later(C), SECOND_ID)
THREE = whole([FIRST, SECOND, THIRD], C)


def test_what_is_issued_is_what_the_format_says():
    random = chains.fixed()
    bearer, nonce = SigningKey(random(32)), random(16)
    by_hand = whole([block(ISSUER, payload(bearer, {"max-tokens": 9}, nonce=nonce))], bearer)
    assert issue(ISSUER, {"max-tokens": 9}, random=chains.fixed()) == by_hand


def test_chains_made_by_hand_are_accepted():
    found = verify_grant(THREE, TRUST)
    assert [one.id for one in found.blocks] == [FIRST_ID, SECOND_ID, block_id(B, later(C), SECOND_ID)]
    assert found.issuer == ISSUER.public
    assert found.secret == C.seed
    assert [one.value.caveats for one in found.blocks] == [{}, {"max-tokens": 5}, {}]


def test_every_length_up_to_eight_blocks_is_accepted_and_nine_are_not():
    data = issue(ISSUER, {}, random=os.urandom)
    for blocks in range(2, 9):
        data = attenuate(verify_grant(data, TRUST), {"max-tokens": blocks}, random=os.urandom)
        assert len(verify_grant(data, TRUST).blocks) == blocks
    with pytest.raises(SchemaError, match="9, expected 1 to 8"):
        attenuate(verify_grant(data, TRUST), {}, random=os.urandom)
    with pytest.raises(SchemaError, match="0, expected 1 to 8"):
        check(whole([], A))


def test_a_grant_that_would_be_too_long_is_not_made():
    many = [bytes([n]) * 32 for n in range(64)]
    data = issue(ISSUER, {"model-in": many}, random=os.urandom)
    with pytest.raises(SchemaError, match="at most 4096"):
        attenuate(verify_grant(data, TRUST), {"model-in": many, "blueprint-in": many}, random=os.urandom)
    with pytest.raises(EncodingError, match="too long"):
        check(whole([FIRST] * 20, A))
    assert len(whole([FIRST] * 20, A)) > MAX_GRANT_BYTES


def test_narrowing_needs_nobody_and_keeps_what_was_there():
    parent = chains.chain({"max-tokens": 9})
    child = verify_grant(attenuate(parent, {"max-uj": 5}, random=os.urandom), TRUST)
    assert child.blocks[:-1] == parent.blocks
    assert child.secret != parent.secret
    assert child.id != parent.id


def test_a_closed_grant_serves_and_cannot_be_added_to():
    parent = chains.chain({"max-tokens": 9}, {})
    closed = verify_grant(close(parent), TRUST)
    assert closed.blocks == parent.blocks
    assert closed.secret is None
    for act in (close, lambda grant: attenuate(grant, {}, random=os.urandom)):
        with pytest.raises(Forbidden, match="closed"):
            act(closed)


def test_a_closing_signature_ends_this_chain_alone():
    def closing(key: SigningKey, last: bytes, content: bytes = b"") -> bytes:
        return chains.sign(key, chains.signed_bytes(header(key), content, last))

    two = [FIRST, SECOND]
    assert check(whole(two, closing=closing(B, SECOND_ID)))
    for wrong in (
        closing(B, FIRST_ID),  # of the block before
        closing(A, SECOND_ID),  # by the key before
        closing(ISSUER, SECOND_ID),
        closing(B, SECOND_ID, later(C)),  # what signs a block
        chains.sign(B, SECOND_ID),  # over the bare id
        bytes(64),
    ):
        with pytest.raises(SignatureError):
            check(whole(two, closing=wrong))
    with pytest.raises(SignatureError):
        check(whole([FIRST], closing=closing(B, SECOND_ID)))


def test_a_closing_signature_is_no_block():
    closing = chains.sign(A, chains.signed_bytes(header(A), b"", FIRST_ID))
    with pytest.raises(PayloadError):
        check(whole([FIRST, chains.sign1(header(A), b"", closing)], B))


def test_the_bearer_proves_that_he_may_go_on():
    for wrong in (B, ISSUER, STRANGER):
        with pytest.raises(SignatureError, match="secret"):
            check(whole([FIRST], wrong))
    for ends in ({}, {"secret": A.seed, "closing": bytes(64)}):
        with pytest.raises(SchemaError, match="either a secret or a closing"):
            check(whole([FIRST], **ends))


PLACES = {
    "a block removed": ([FIRST, THIRD], C, HeaderError),
    "the last removed": ([FIRST, SECOND], C, SignatureError),
    "the first removed": ([SECOND, THIRD], C, UntrustedSteward),
    "two swapped": ([FIRST, THIRD, SECOND], C, HeaderError),
    "turned round": ([THIRD, SECOND, FIRST], C, UntrustedSteward),
    "one twice": ([FIRST, SECOND, SECOND], B, HeaderError),
    "the first twice": ([FIRST, FIRST], A, HeaderError),
    "all twice": ([FIRST, SECOND, FIRST, SECOND], B, HeaderError),
}


@pytest.mark.parametrize(("blocks", "secret", "error"), PLACES.values(), ids=list(PLACES))
def test_blocks_stay_in_their_places(blocks, secret, error):
    with pytest.raises(error):
        check(whole(blocks, secret))


def test_a_block_belongs_to_one_parent():
    # the same keys under another first block: nothing but the parent's id differs
    other = block(ISSUER, payload(A, nonce=b"\x01" * 16))
    assert check(whole([other], A))
    with pytest.raises(SignatureError):
        check(whole([other, SECOND], B))
    with pytest.raises(SignatureError):
        check(whole([FIRST, block(A, later(B))], B))  # signed without a parent
    with pytest.raises(SignatureError):
        check(whole([block(ISSUER, payload(A), FIRST_ID)], A))  # a first block with one


def test_only_the_key_that_the_parent_names_signs():
    for signer in (ISSUER, STRANGER, B):
        with pytest.raises(HeaderError, match="its parent names"):
            check(whole([FIRST, block(signer, later(B), FIRST_ID)], B))
    # under the right name, by another hand
    forged = chains.sign1(header(A), later(B), chains.sign(B, chains.signed_bytes(header(A), later(B), FIRST_ID)))
    with pytest.raises(SignatureError):
        check(whole([FIRST, forged], B))


def test_the_issuer_is_the_verifiers_choice():
    foreign = whole([block(STRANGER, payload(A))], A)
    with pytest.raises(UntrustedSteward, match=STRANGER.public.hex()):
        check(foreign)
    assert verify_grant(foreign, {STRANGER.public}).issuer == STRANGER.public
    assert verify_unvouched(foreign).issuer == STRANGER.public
    with pytest.raises(UntrustedSteward):
        verify_grant(ONE, ())


def test_a_bearers_key_makes_no_issuer():
    chain = chains.chain({}, {})
    for key in (chain.blocks[0].value.next, chain.blocks[1].value.next):
        with pytest.raises(UntrustedSteward):
            verify_grant(chains.grant({}, {}), {key})


def test_an_issuer_is_trusted_for_a_time():
    chain = verify_grant(ONE, TRUST)
    chain.check_issuer(TRUST, NOW_NS)
    chain.check_issuer(Trust.always(TRUST), NOW_NS)
    until = Trust({ISSUER.public: [Window(until_ns=NOW_NS)]})
    chain.check_issuer(until, NOW_NS - 1)
    with pytest.raises(UntrustedSteward, match="trusted until"):
        chain.check_issuer(until, NOW_NS)
    with pytest.raises(UntrustedSteward, match="not in the trust set"):
        chain.check_issuer({STRANGER.public}, NOW_NS)


# the order of the checks, in one block
FAULTS = {
    "no envelope": (b"\x00", StructureError),
    "a payload alone": (payload(A), StructureError),
    "not tagged": (FIRST[1:], StructureError),
    "truncated": (FIRST[:-1], StructureError),
    "header no map": (block(ISSUER, payload(A), protected=handmade.array([])), StructureError),
    "trailing byte": (FIRST + b"\x00", CanonicalError),
    "tag in two bytes": (b"\xd8\x12" + FIRST[1:], CanonicalError),
    "header in another order": (
        block(ISSUER, payload(A), protected=handmade.mapping([
            (handmade.integer(3), handmade.text(chains.GRANT_TYPE)), (handmade.integer(1), handmade.integer(-19)),
            (handmade.integer(4), handmade.bstr(ISSUER.public)),
        ])), CanonicalError,
    ),
    "a wide algorithm": (
        block(ISSUER, payload(A), protected=header(ISSUER, alg=handmade.integer(-19, 1))), CanonicalError,
    ),
    "another algorithm": (block(ISSUER, payload(A), protected=header(ISSUER, alg=handmade.integer(-8))), HeaderError),
    "no algorithm": (block(ISSUER, payload(A), protected=header(ISSUER, alg=None)), HeaderError),
    "no type": (block(ISSUER, payload(A), protected=header(ISSUER, type=None)), HeaderError),
    "no key": (block(ISSUER, payload(A), protected=header(ISSUER, kid=None)), HeaderError),
    "short key": (
        block(ISSUER, payload(A), protected=header(ISSUER, kid=handmade.bstr(ISSUER.public[:31]))), HeaderError,
    ),
    "a receipt's type": (
        block(ISSUER, payload(A), protected=header(ISSUER, type=handmade.text(RECEIPT_TYPE))), HeaderError,
    ),
    "an entry more": (
        block(ISSUER, payload(A), protected=header(ISSUER, more=[(handmade.integer(15), handmade.item({}))])),
        HeaderError,
    ),
    "empty header": (block(ISSUER, payload(A), protected=b"\xa0"), HeaderError),
    "an unprotected header": (
        block(ISSUER, payload(A), unprotected=handmade.item({394: [b"a proof"]})), HeaderError,
    ),
    "untrusted and badly signed": (chains.sign1(header(STRANGER), payload(A), bytes(64)), UntrustedSteward),
    "badly signed": (chains.sign1(header(ISSUER), payload(A), bytes(64)), SignatureError),
    "payload no map": (block(ISSUER, handmade.array([handmade.bstr(bytes(32))])), PayloadError),
    "payload in another spelling": (block(ISSUER, handmade.spellings({
        "v": "mesh/1", "next": A.public, "caveats": {}, "nonce": bytes(16)})[0]), PayloadError),
    "another version": (block(ISSUER, payload(A, v="mesh/2")), PayloadError),
    "no next": (block(ISSUER, payload(A, next=None)), PayloadError),
    "short next": (block(ISSUER, payload(A, next=A.public[:31])), PayloadError),
    "no caveats": (block(ISSUER, handmade.item({"v": "mesh/1", "next": A.public, "nonce": bytes(16)})), PayloadError),
    "caveats in a list": (block(ISSUER, handmade.item({
        "v": "mesh/1", "next": A.public, "nonce": bytes(16), "caveats": [["max-tokens", 5]]})), PayloadError),
    "no nonce": (block(ISSUER, later(A)), PayloadError),
    "short nonce": (block(ISSUER, payload(A, nonce=bytes(15))), PayloadError),
    "an unknown field": (block(ISSUER, payload(A, note="x")), PayloadError),
}  # fmt: skip


@pytest.mark.parametrize(("data", "error"), FAULTS.values(), ids=list(FAULTS))
def test_each_fault_of_a_block_has_its_class(data, error):
    assert data != FIRST
    with pytest.raises(error) as caught:
        check(whole([data], A))
    assert caught.type is error


def test_a_later_block_has_no_nonce():
    with pytest.raises(PayloadError, match="nonce"):
        check(whole([FIRST, block(A, payload(B), FIRST_ID)], B))


def test_totals_want_one_steward():
    one = {"steward-in": [STEWARD]}
    assert chains.chain({**one, "total-uj": 5})
    assert chains.chain(one, {"total-tokens": 5})
    assert chains.chain({"steward-in": sorted([STEWARD, ISSUER.public])}, {**one, "total-uj": 5})
    for caveats in (
        [{"total-uj": 5}],
        [{"total-tokens": 5}, one],
        [{"steward-in": sorted([STEWARD, ISSUER.public]), "total-uj": 5}],
    ):
        with pytest.raises(PayloadError, match="each steward would count alone"):
            chains.chain(*caveats)


# ------------------------------------------------------------------------------------------- one for another


def test_no_receipt_or_checkpoint_is_a_block():
    key = SigningKey(samples.KEY.seed)
    receipt = seal(Receipt.from_map(samples.receipt()), key).envelope
    checkpoint = seal(Checkpoint.from_map(samples.checkpoint()), key).envelope
    for envelope in (receipt, checkpoint):
        with pytest.raises(HeaderError):
            verify_grant(whole([envelope], A), {key.public})


def test_no_block_is_a_receipt_or_checkpoint():
    for content_type in (RECEIPT_TYPE, CHECKPOINT_TYPE):
        with pytest.raises(HeaderError):
            verify(FIRST, content_type, TRUST)


def test_no_signature_of_one_fits_the_other():
    """Even a key that does both, and a content of one in the envelope of the other."""
    key = samples.KEY
    receipt = Receipt.from_map(samples.receipt())
    sealed = seal(receipt, key)
    # a receipt's payload, signed as a block
    with pytest.raises(PayloadError):
        verify_grant(whole([block(key, receipt.to_cbor())], A), {key.public})
    # a block's payload under the signature of a receipt, and the other way round
    with pytest.raises(SignatureError):
        verify_grant(whole([chains.sign1(header(key), receipt.to_cbor(), sealed.envelope[-64:])], A), {key.public})
    grant = block(key, payload(A))
    swapped = sealed.envelope[:-64] + grant[-64:]
    with pytest.raises(SignatureError):
        verify(swapped, RECEIPT_TYPE, {key.public})
    # a receipt that was signed over an external_aad is none
    protected = sealed.envelope[4 : 4 + sealed.envelope[3]]
    aad = chains.sign(key, chains.signed_bytes(protected, receipt.to_cbor(), FIRST_ID))
    with pytest.raises(SignatureError):
        verify(sealed.envelope[:-64] + aad, RECEIPT_TYPE, {key.public})


def test_weak_keys_cannot_go_on():
    weak = (1).to_bytes(32, "little")
    first = block(ISSUER, payload(A, next=weak))
    fits_anything = weak + bytes(32)
    with pytest.raises(SignatureError, match="small order"):
        check(whole([first], closing=fits_anything))
    first_id = block_id(ISSUER, payload(A, next=weak))
    protected = header(A, kid=handmade.bstr(weak))
    with pytest.raises(SignatureError, match="small order"):
        check(whole([first, chains.sign1(protected, later(B), fits_anything)], B))
    assert first_id != FIRST_ID


def test_other_spellings_of_the_whole_are_refused():
    fields = {"blocks": [FIRST, SECOND], "secret": B.seed}
    assert check(handmade.item(fields))
    spelled = handmade.spellings(fields)
    assert len(spelled) > 10
    for data in spelled:
        with pytest.raises(EncodingError):
            check(data)


def test_what_is_no_grant_is_told_apart():
    for data, error in (
        (b"", EncodingError),
        (ONE + b"\x00", EncodingError),
        (ONE[:-1], EncodingError),
        (FIRST, EncodingError),  # a tag
        (handmade.item([FIRST]), EncodingError),
        (whole([FIRST], A, note=1), SchemaError),
        (whole([FIRST], secret=A.seed[:31]), SchemaError),
        (whole([FIRST], closing=bytes(63)), SchemaError),
        (handmade.item({"secret": A.seed}), SchemaError),
        (handmade.item({"blocks": FIRST, "secret": A.seed}), SchemaError),
        (handmade.item({"blocks": ["text"], "secret": A.seed}), SchemaError),
    ):
        with pytest.raises(MeshError) as caught:
            check(data)
        assert caught.type is error, data


def test_the_secret_is_not_shown():
    chain = chains.chain({})
    assert chain.secret is not None
    assert chain.secret.hex() not in repr(chain)
    assert str(chain.secret) not in repr(chain)
    assert Grant.from_cbor(ONE, max_bytes=MAX_GRANT_BYTES).secret == A.seed
