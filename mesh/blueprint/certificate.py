"""Certificates: a key pair, vouched for by another until a date, up to a root that is kept offline.

Their layout is fixed, because a chain is read before any signature in it has been checked:

    offset  bytes
    0       4      magic MKBC
    4       2      version, 1
    6       2      flags: 1 if its subject may certify others
    8       16     serial, random
    24      8      valid from, Unix seconds
    32      8      valid until, Unix seconds; not any more then
    40      32     key id of the issuer
    72      1984   keys of the subject: Ed25519, ML-DSA-65
    2056    64     label, UTF-8, zeros behind it
    2120    3373   signatures of the issuer over all before: Ed25519, ML-DSA-65

Numbers are little-endian. A root has no certificate: its keys are what a verifier trusts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from mesh.blueprint.signature import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SecretKey
from mesh.errors import ChainError, ExpiredError, SignerError, UntrustedRoot

MAGIC: Final = b"MKBC"
VERSION: Final = 1
MAY_CERTIFY: Final = 1
LABEL_BYTES: Final = 64
MAX_CHAIN: Final = 4
SERIAL_BYTES: Final = 16
_HEAD = struct.Struct(f"<4sHH{SERIAL_BYTES}sQQ32s{KEY_BYTES}s{LABEL_BYTES}s")
SIGNED_BYTES: Final = _HEAD.size
CERTIFICATE_BYTES: Final = SIGNED_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class Certificate:
    """`from_s` and `until_s` are Unix seconds; `until_s` is the first at which it is not valid any more."""

    data: bytes
    may_certify: bool
    serial: bytes
    from_s: int
    until_s: int
    issuer: bytes
    subject: PublicKey
    label: str

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "certificate") -> Certificate:
        """Raises ChainError for anything but the one spelling of a certificate. No signature is checked."""
        if len(data) != CERTIFICATE_BYTES:
            raise ChainError(f"{what}: {len(data)} bytes, expected {CERTIFICATE_BYTES}")
        magic, version, flags, serial, from_s, until_s, issuer, subject, label = _HEAD.unpack(data[:SIGNED_BYTES])
        if magic != MAGIC:
            raise ChainError(f"{what}: magic {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise ChainError(f"{what}: version {version}, expected {VERSION}")
        if flags & ~MAY_CERTIFY:
            raise ChainError(f"{what}: flags {flags:#x}, expected 0 or {MAY_CERTIFY}")
        if from_s >= until_s:
            raise ChainError(f"{what}: valid from {from_s} until {until_s}, which is never")
        try:
            key = PublicKey.from_bytes(subject)
        except ChainError as e:
            raise ChainError(f"{what}: {e}") from None
        return cls(data, bool(flags), serial, from_s, until_s, issuer, key, _label(label, what))

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of what is signed: another signature over the same is no other certificate."""
        return hashlib.sha256(self.data[:SIGNED_BYTES]).digest()

    def check_issuer(self, key: PublicKey, what: str) -> None:
        """Raises ChainError where `key` did not sign it."""
        try:
            key.verify("certificate", self.data[:SIGNED_BYTES], self.data[SIGNED_BYTES:], what)
        except SignerError as e:
            raise ChainError(str(e)) from None

    def check_time(self, now_s: int, what: str) -> None:
        if now_s < self.from_s:
            raise ExpiredError(f"{what}: not valid yet: from {self.from_s}, now {now_s}")
        if now_s >= self.until_s:
            raise ExpiredError(f"{what}: expired at {self.until_s}, now {now_s}")


def _label(data: bytes, what: str) -> str:
    text, _, behind = data.partition(b"\0")
    try:
        label = text.decode()
    except UnicodeDecodeError:
        label = ""
    if not label or not label.isprintable() or behind.strip(b"\0"):
        raise ChainError(f"{what}: its label is not printable text with zeros behind it")
    return label


def certify(
    issuer: SecretKey, subject: PublicKey, *, label: str, from_s: int, until_s: int, may_certify: bool, serial: bytes
) -> Certificate:
    """Raises ChainError for what no certificate can say."""
    name = label.encode()
    if not 0 < len(name) <= LABEL_BYTES or not label.isprintable():
        raise ChainError(f"certificate: label {label[:80]!r}, expected 1 to {LABEL_BYTES} printable bytes")
    try:
        head = _HEAD.pack(
            MAGIC, VERSION, MAY_CERTIFY if may_certify else 0, serial, from_s, until_s, issuer.public.id, subject.data,
            name,
        )  # fmt: skip
    except struct.error:
        raise ChainError(f"certificate: valid from {from_s} until {until_s}, expected Unix seconds") from None
    return Certificate.from_bytes(head + issuer.sign("certificate", head))


def check_chain(chain: Sequence[Certificate], roots: Mapping[bytes, PublicKey]) -> PublicKey:
    """Follow `chain`, the signer's first, to one of `roots`, by their key ids: each is signed by the subject of the
    next, which may certify, the last by a root. Returns that root. Raises ChainError, UntrustedRoot."""
    check_links(chain)
    last, what = chain[-1], f"certificate {len(chain) - 1}"
    root = roots.get(last.issuer)
    if root is None:
        raise UntrustedRoot(f"{what}: issued by root {last.issuer.hex()}, which is not trusted here")
    last.check_issuer(root, what)
    return root


def check_links(chain: Sequence[Certificate]) -> None:
    """As `check_chain`, up to the last one. Raises ChainError."""
    if not 0 < len(chain) <= MAX_CHAIN:
        raise ChainError(f"certificates: {len(chain)} in the chain, expected 1 to {MAX_CHAIN}")
    for number, (certificate, issuer) in enumerate(pairwise(chain)):
        what = f"certificate {number}"
        if certificate.issuer != issuer.subject.id:
            raise ChainError(f"{what}: its issuer is {certificate.issuer.hex()}, the next one's subject another")
        if not issuer.may_certify:
            raise ChainError(f"{what}: its issuer, certificate {number + 1}, may not certify")
        certificate.check_issuer(issuer.subject, what)
