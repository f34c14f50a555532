"""Who signs blueprints: a pair of keys, ML-DSA-65 (FIPS 204) and Ed25519, and two signatures that must both hold.

Either algorithm may turn out to be weak one day, a lattice sooner or a curve later; a forger has to break both. What is
signed is a short message with the name of its purpose in front, so that no signature serves for anything else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from mesh.errors import ChainError, SignatureError, SignerError
from mesh.schema.envelope import SigningKey, verify_signature
from mesh.schema.keys import check_public_key

ED25519_KEY_BYTES: Final = 32
ML_DSA_KEY_BYTES: Final = 1952
KEY_BYTES: Final = ED25519_KEY_BYTES + ML_DSA_KEY_BYTES
ED25519_SIGNATURE_BYTES: Final = 64
SIGNATURE_BYTES: Final = ED25519_SIGNATURE_BYTES + 3309
SEED_BYTES: Final = 64

Purpose = Literal["body", "kernel", "certificate", "revocations"]


def message(purpose: Purpose, content: bytes) -> bytes:
    """What is signed: `mesh blueprint <purpose> v1`, a zero byte, the content."""
    return f"mesh blueprint {purpose} v1".encode() + b"\0" + content


@dataclass(frozen=True)
class PublicKey:
    """32 bytes of Ed25519 and 1952 of ML-DSA-65. Raises ChainError for an Ed25519 key that can bind nobody: no point of
    the curve, another spelling of one, or one of small order."""

    ed25519: bytes
    ml_dsa: bytes

    def __post_init__(self) -> None:
        if len(self.ml_dsa) != ML_DSA_KEY_BYTES:
            raise ChainError(f"blueprint key: {len(self.ml_dsa)} bytes of ML-DSA-65, expected {ML_DSA_KEY_BYTES}")
        try:
            check_public_key(self.ed25519)
        except SignatureError as e:
            raise ChainError(f"blueprint key: {e}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        return cls(data[:ED25519_KEY_BYTES], data[ED25519_KEY_BYTES:])

    @property
    def data(self) -> bytes:
        return self.ed25519 + self.ml_dsa

    @cached_property
    def id(self) -> bytes:
        """SHA-256 over both keys."""
        return hashlib.sha256(message_of_key(self.data)).digest()

    def verify(self, purpose: Purpose, content: bytes, signature: bytes, what: str) -> None:
        """Raises SignerError naming the first signature that does not hold."""
        if len(signature) != SIGNATURE_BYTES:
            raise SignerError(f"{what}: signatures of {len(signature)} bytes, expected {SIGNATURE_BYTES}")
        # here, since it takes 7 MiB of every process that never sees a blueprint
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

        signed = message(purpose, content)
        try:
            verify_signature(self.ed25519, signed, signature[:ED25519_SIGNATURE_BYTES])
        except SignatureError:
            raise SignerError(f"{what}: its Ed25519 signature does not hold") from None
        try:
            MLDSA65PublicKey.from_public_bytes(self.ml_dsa).verify(signature[ED25519_SIGNATURE_BYTES:], signed)
        except (InvalidSignature, ValueError):
            raise SignerError(f"{what}: its ML-DSA-65 signature does not hold") from None


def message_of_key(data: bytes) -> bytes:
    return b"mesh blueprint key v1\0" + data


class SecretKey:
    """Both secret keys, made of 64 random bytes: the seed of Ed25519, then that of ML-DSA-65. Never printed."""

    __slots__ = ("_ed25519", "_ml_dsa", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ChainError(f"blueprint key: a seed of {len(seed)} bytes, expected {SEED_BYTES}")
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

        self.seed = seed
        self._ed25519 = SigningKey(seed[:32])
        self._ml_dsa = MLDSA65PrivateKey.from_seed_bytes(seed[32:])
        self.public = PublicKey(self._ed25519.public, self._ml_dsa.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"SecretKey(id={self.public.id.hex()!r})"

    def sign(self, purpose: Purpose, content: bytes) -> bytes:
        """Both signatures, Ed25519 first. That of ML-DSA-65 is another one each time."""
        signed = message(purpose, content)
        return self._ed25519.sign(signed) + self._ml_dsa.sign(signed)
