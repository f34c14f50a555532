"""The signature block: certificates, both signatures over the body, and both over each kernel's digest.

bytes
1          certificates in the chain, 1 to 4
5493 each  certificates, the signer's first
3373       signatures over version, length and hash of the body: Ed25519, ML-DSA-65
2          kernel modules, little-endian
3405 each  SHA-256 of a module and the signatures over it, digests ascending
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mesh.blueprint.certificate import CERTIFICATE_BYTES, MAX_CHAIN, Certificate
from mesh.blueprint.container import MAX_MODULES, Header
from mesh.blueprint.signature import SIGNATURE_BYTES, PublicKey, SecretKey
from mesh.errors import ChainError, SignerError

_DIGEST_BYTES: Final = 32
_ARTIFACT_BYTES: Final = _DIGEST_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class SignatureBlock:
    """Read, and nothing in it checked."""

    chain: tuple[Certificate, ...]
    body: bytes
    kernels: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> SignatureBlock:
        """Raises SignerError for a block that is none, ChainError for a certificate that is none."""
        if not data:
            raise SignerError("blueprint: not signed")
        count = data[0]
        if count not in range(1, MAX_CHAIN + 1):
            raise SignerError(f"signature block: {count} certificates, expected 1 to {MAX_CHAIN}")
        body_at = 1 + count * CERTIFICATE_BYTES
        at = body_at + SIGNATURE_BYTES + 2
        kernels = int.from_bytes(data[at - 2 : at], "little")
        if kernels > MAX_MODULES or len(data) != at + kernels * _ARTIFACT_BYTES:
            raise SignerError(
                f"signature block: {count} certificates and {kernels} kernels in {len(data)} bytes, which does not go "
                "together"
            )
        found = tuple(
            (data[start : start + _DIGEST_BYTES], data[start + _DIGEST_BYTES : start + _ARTIFACT_BYTES])
            for start in range(at, len(data), _ARTIFACT_BYTES)
        )
        if any(before[0] >= after[0] for before, after in pairwise(found)):
            raise SignerError("signature block: the digests of its kernels do not ascend")
        chain = tuple(
            Certificate.from_bytes(data[start : start + CERTIFICATE_BYTES], f"certificate {number}")
            for number, start in enumerate(range(1, body_at, CERTIFICATE_BYTES))
        )
        return cls(chain, data[body_at : at - 2], found)

    def check(self, signer: PublicKey, header: Header) -> None:
        """Raises SignerError naming the first signature that does not hold."""
        signer.verify("body", header.signed, self.body, "blueprint")
        for digest, signature in self.kernels:
            signer.verify("kernel", digest, signature, f"kernel {digest.hex()}")


def sign(key: SecretKey, chain: Sequence[Certificate], header: Header, kernels: Iterable[bytes]) -> bytes:
    """The block for a body and the digests of its kernels. Raises ChainError where the chain is not that of `key`."""
    if len(chain) not in range(1, MAX_CHAIN + 1):
        raise ChainError(f"certificates: {len(chain)} given, expected 1 to {MAX_CHAIN}")
    if chain[0].subject != key.public:
        raise ChainError(f"certificate 0: of key {chain[0].subject.id.hex()}, the signer is {key.public.id.hex()}")
    digests = sorted(set(kernels))
    return b"".join(
        (
            bytes((len(chain),)),
            *(certificate.data for certificate in chain),
            key.sign("body", header.signed),
            len(digests).to_bytes(2, "little"),
            *(digest + key.sign("kernel", digest) for digest in digests),
        )
    )
