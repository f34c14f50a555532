"""Who signed a blueprint, who vouched for them, and what was taken back since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from mesh.blueprint import certificate as certificates
from mesh.blueprint.certificate import SIGNED_BYTES, Certificate, certify, check_chain
from mesh.blueprint.container import Container
from mesh.blueprint.revocation import Revocations, revoke
from mesh.blueprint.sealing import sign
from mesh.blueprint.signature import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SecretKey
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
    "of another root": (lambda: (certificate(OTHER),), UntrustedRoot, "^certificate 0: issued by root"),
    "broken": (lambda: (certificate(MIDDLE), certificate(subject=OTHER.public, may_certify=True)), ChainError, "next"),
    "by one who may not": (
        lambda: (certificate(MIDDLE), certificate(subject=MIDDLE.public)), ChainError, "issuer, certificate 1, may not"
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


def test_label_that_is_too_long_is_told_in_short() -> None:
    with pytest.raises(ChainError, match=f"^certificate: label '{'x' * 80}', expected 1 to 64 printable bytes$"):
        certificate(label="x" * 100)


def test_chain_of_no_certificate_leads_nowhere() -> None:
    with pytest.raises(ChainError, match=r"^certificates: 0 in the chain, expected 1 to 4$"):
        check_chain((), {})


@pytest.mark.parametrize("count", [0, 5])
def test_nobody_signs_without_a_certificate_or_with_more_than_are_read(count: int) -> None:
    header = Container.of_bytes(kbp(key=None)).header
    with pytest.raises(ChainError, match=f"^certificates: {count} given, expected 1 to 4$"):
        sign(SIGNER, (certificate(),) * count, header, [])
    assert sign(SIGNER, (certificate(),) * 4, header, [])[0] == 4


@pytest.mark.parametrize("count", [63, 65])
def test_key_is_made_of_64_bytes_and_of_no_others(count: int) -> None:
    with pytest.raises(ChainError, match=f"^blueprint key: a seed of {count} bytes, expected 64$"):
        SecretKey(b"s" * count)


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


def test_list_of_another_length_is_none() -> None:
    told = {"number": 1, "made_s": 1, "until_s": 2}
    roots = {ROOT.public.id: ROOT.public}
    none, one = (revoke(ROOT, ids, **told) for ids in ((), (b"x" * 32,)))
    least = len(none)
    assert len(one) == least + 32
    for data in (none[:-1], none[: least - SIGNATURE_BYTES], b""):
        with pytest.raises(ChainError, match=f"^revocation list: {len(data)} bytes, expected at least {least}$"):
            Revocations.from_bytes(data, roots)
    for data in (one[:-1], one + b"\0", one[:-32]):
        with pytest.raises(ChainError, match=f"^revocation list: 1 ids in {len(data)} bytes, expected {least + 32}$"):
            Revocations.from_bytes(data, roots)
    assert Revocations.from_bytes(one, roots).ids == {b"x" * 32}


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
