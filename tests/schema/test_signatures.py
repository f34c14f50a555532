"""Ed25519 under attack: signatures that were changed and keys that bind nobody."""

from __future__ import annotations

import pytest

from mesh.errors import SchemaError, SignatureError
from mesh.schema.envelope import SigningKey, check_public_key, verify_signature

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493

SEED = bytes(range(32))
PUBLIC = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
MESSAGE = b"receipt-1"
SIGNATURE = bytes.fromhex(
    "17d2faf07688bd5ca6e74d656093946107eec4fff2e5ff9733ed2ffc3b9fdb0e"
    "5ee2a240b8e0fe5fa2593ffc323b478d245503fd328ac628a2fa845bc5fa5a0f"
)
# R is the identity and S is zero: under a key of small order it fits any message.
FITS_ANYTHING = b"\x01" + bytes(63)

# y of the eight points of small order, and the encodings of them that are too large by one field prime.
SMALL_Y = [
    0,
    1,
    P - 1,
    P,
    P + 1,
    int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
    int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
]
WEAK = [(y | sign << 255).to_bytes(32, "little") for y in SMALL_Y for sign in (0, 1)]


def point_order_divides_8(y: int) -> bool:
    """Doubling three times on the curve, in plain integers, as a check of the list above."""
    d = -121665 * pow(121666, -1, P) % P
    u, v = (y * y - 1) % P, (d * y * y + 1) % P
    x2 = u * pow(v, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != x2:
        return False
    for _ in range(3):
        k = d * x * x * y * y % P
        x, y = 2 * x * y * pow(1 + k, -1, P) % P, (y * y + x * x) * pow(1 - k, -1, P) % P
    return (x, y % P) == (0, 1)


def test_the_keys_of_the_list_have_small_order():
    assert all(point_order_divides_8(y) for y in SMALL_Y)
    assert not point_order_divides_8(int.from_bytes(PUBLIC, "little") & (1 << 255) - 1)


def test_signing_is_deterministic_and_known():
    key = SigningKey(SEED)
    assert key.public == PUBLIC
    assert key.sign(MESSAGE) == SIGNATURE
    verify_signature(PUBLIC, MESSAGE, SIGNATURE)


def test_rfc_8032_vectors():
    for seed, public, message, signature in (
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ):
        key = SigningKey(bytes.fromhex(seed))
        assert key.public.hex() == public
        assert key.sign(bytes.fromhex(message)).hex() == signature
        verify_signature(key.public, bytes.fromhex(message), bytes.fromhex(signature))


def test_adding_the_group_order_does_not_make_a_second_signature():
    s = int.from_bytes(SIGNATURE[32:], "little")
    for times in range(1, 20):
        if s + times * L >= 2**256:
            break
        with pytest.raises(SignatureError):
            verify_signature(PUBLIC, MESSAGE, SIGNATURE[:32] + (s + times * L).to_bytes(32, "little"))
    else:
        pytest.fail("the order never left 256 bits")


@pytest.mark.parametrize("key", WEAK, ids=bytes.hex)
def test_weak_keys_are_refused_at_registration_and_at_verification(key):
    with pytest.raises(SignatureError, match="public key"):
        check_public_key(key)
    for message in (b"pay 1", b"pay 1000000", b""):
        with pytest.raises(SignatureError, match="public key"):
            verify_signature(key, message, FITS_ANYTHING)


@pytest.mark.parametrize("y", [P + 2, P + 3, P + 18, 2**255 - 1])
def test_keys_that_are_no_canonical_point_are_refused(y):
    for sign in (0, 1):
        with pytest.raises(SignatureError, match="not a canonical point"):
            check_public_key((y | sign << 255).to_bytes(32, "little"))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_keys_are_32_bytes(size):
    with pytest.raises(SignatureError, match="expected 32"):
        check_public_key(bytes(size))
    with pytest.raises(SchemaError, match="expected 32"):
        SigningKey(bytes(size))


@pytest.mark.parametrize("size", [0, 32, 63, 65, 128])
def test_signatures_are_64_bytes(size):
    with pytest.raises(SignatureError):
        verify_signature(PUBLIC, MESSAGE, (SIGNATURE * 2)[:size])


def test_a_key_off_the_curve_verifies_nothing():
    off = next(
        y.to_bytes(32, "little")
        for y in range(2, 50)
        if pow((y * y - 1) * pow(-121665 * pow(121666, -1, P) * y * y + 1, -1, P) % P, (P - 1) // 2, P) == P - 1
    )
    with pytest.raises(SignatureError):
        verify_signature(off, MESSAGE, FITS_ANYTHING)


def test_a_weak_commitment_point_is_refused():
    # R of small order: allowed by some libraries, so two verifiers could differ
    for r in WEAK:
        with pytest.raises(SignatureError):
            verify_signature(PUBLIC, MESSAGE, r + SIGNATURE[32:])


def test_every_bit_of_a_signature_matters():
    for bit in range(512):
        changed = bytearray(SIGNATURE)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureError):
            verify_signature(PUBLIC, MESSAGE, bytes(changed))


def test_a_signing_key_does_not_print_its_seed():
    key = SigningKey(SEED)
    for shown in (repr(key), str(key), f"{key}"):
        assert SEED.hex() not in shown
        assert repr(SEED) not in shown
        assert PUBLIC.hex() in shown
