"""Who signed a blueprint, who vouched for them, and what was taken back since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from mesh.blueprint import certificate as certificates
from mesh.blueprint.certificate import SIGNED_BYTES, Certificate, certify
from mesh.blueprint.signature import KEY_BYTES, PublicKey, SecretKey
from mesh.errors import (
    ChainError,
    ExpiredError,
    MeshError,
    RevokedError,
    SignerError,
    StaleRevocations,
    UntrustedRoot,
)
from tests.blueprint.bodies import (
    MIDDLE,
    NOW_S,
    PAYLOAD,
    ROOT,
    SIGNER,
    YEAR_S,
    body,
    certificate,
    chain,
    checked,
    kbp,
    policy,
    revocations,
)

OTHER = SecretKey(b"o" * 64)


# --- who signed


def test_signer_may_be_certified_by_the_root_itself() -> None:
    assert checked(kbp(certificates=(certificate(),))).body == body()


WRONG_CHAINS: dict[str, tuple[Callable[[], tuple[Certificate, ...]], type[MeshError], str]] = {
    "of another root": (lambda: (certificate(OTHER),), UntrustedRoot, "not trusted here"),
    "broken": (lambda: (certificate(MIDDLE), certificate(subject=OTHER.public, may_certify=True)), ChainError, "next"),
    "by one who may not": (
        lambda: (certificate(MIDDLE), certificate(subject=MIDDLE.public)), ChainError, "may not certify"
    ),
    "expired": (lambda: (certificate(until_s=NOW_S),), ExpiredError, "expired at"),
    "not yet": (lambda: (certificate(from_s=NOW_S + 1),), ExpiredError, "not valid yet"),
    "expired above": (
        lambda: (certificate(MIDDLE), certificate(subject=MIDDLE.public, may_certify=True, until_s=NOW_S)),
        ExpiredError, "certificate 1: expired",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_CHAINS)
def test_chain_that_does_not_hold_is_refused(case: str) -> None:
    made, error, told = WRONG_CHAINS[case]
    with pytest.raises(error, match=told):
        checked(kbp(certificates=made()))


def test_certificate_forged_under_the_roots_name_is_refused() -> None:
    true, forged = certificate(), certificate(OTHER)
    data = true.data[:SIGNED_BYTES] + forged.data[SIGNED_BYTES:]
    with pytest.raises(ChainError, match="Ed25519 signature"):
        checked(kbp(certificates=(Certificate.from_bytes(data),)))
    # one of both is not enough
    half = true.data[: SIGNED_BYTES + 64] + forged.data[SIGNED_BYTES + 64 :]
    with pytest.raises(ChainError, match="ML-DSA-65 signature"):
        checked(kbp(certificates=(Certificate.from_bytes(half),)))


@pytest.mark.parametrize("key", [b"\0" * 32, b"\x01" + b"\0" * 31, b"\xec" + b"\xff" * 30 + b"\x7f", b"\xff" * 32])
def test_key_that_binds_nobody_is_refused_when_it_is_loaded(key: bytes) -> None:
    with pytest.raises(ChainError, match="public key"):
        PublicKey(key, SIGNER.public.ml_dsa)
    data = bytearray(certificate().data)
    data[72 : 72 + 32] = key
    with pytest.raises(ChainError, match="certificate: blueprint key"):
        Certificate.from_bytes(bytes(data))
    with pytest.raises(ChainError, match="expected 1952"):
        PublicKey.from_bytes(SIGNER.public.data[: KEY_BYTES - 1])


def test_certificate_has_one_spelling() -> None:
    good = certificate().data
    assert Certificate.from_bytes(good).data == good
    for at, value in ((0, 0), (4, 2), (6, 2), (2056, 0), (2056 + 63, 65), (2056 + 8, 0)):
        data = bytearray(good)
        data[at] = value
        if bytes(data) != good and at != 2056 + 8:
            with pytest.raises(ChainError):
                Certificate.from_bytes(bytes(data))
    for fields in ({"label": ""}, {"label": "x" * 65}, {"label": "a\nb"}, {"from_s": -1}, {"from_s": NOW_S + YEAR_S}):
        with pytest.raises(ChainError):
            certificate(**fields)
    assert certificates.CERTIFICATE_BYTES == 5493


# --- what was taken back


def test_what_was_revoked_is_refused() -> None:
    data, (leaf, above) = kbp(certificates=(certs := chain())), certs
    blueprint = checked(data)
    for one in (leaf.id, above.id, SIGNER.public.id, MIDDLE.public.id, blueprint.id, hashlib.sha256(PAYLOAD).digest()):
        with pytest.raises(RevokedError, match=one.hex()):
            checked(data, policy(one))
    assert checked(data, policy(b"x" * 32)).id == blueprint.id


def test_list_of_revocations_has_a_time_and_a_root_of_its_own() -> None:
    data = kbp()
    with pytest.raises(StaleRevocations, match="expired"):
        checked(data, policy(revocations=revocations(until_s=NOW_S)))
    with pytest.raises(StaleRevocations, match="certificates lead to"):
        checked(data, policy(revocations=revocations(root=OTHER)))


def test_first_fault_is_the_one_that_is_told() -> None:
    """Expired, revoked and with a false signature: each is told when the one before it is mended."""
    late = (certificate(until_s=NOW_S),)
    false = bytearray(kbp(certificates=late))
    false[-1] ^= 1
    gone = policy(SIGNER.public.id)
    with pytest.raises(ExpiredError):
        checked(bytes(false), gone)
    with pytest.raises(RevokedError):
        checked(bytes(false), replace(gone, now_s=NOW_S - 1))
    with pytest.raises(SignerError):
        checked(bytes(false), policy(now_s=NOW_S - 1))


def test_root_certifies_and_never_signs_in_its_own_name() -> None:
    own = certify(
        ROOT, ROOT.public, label="itself", from_s=NOW_S - 1, until_s=NOW_S + 1, may_certify=False, serial=b"s" * 16
    )
    assert checked(kbp(certificates=(own,), key=ROOT)).body == body()
    with pytest.raises(ChainError, match="the signer is"):
        kbp(certificates=(own,))
