"""The signed envelope: COSE_Sign1 (RFC 9052) over a canonical payload, Ed25519 (RFC 9864), with one `verify`.

    18([<< {1: -19, 3: content type, 4: key, 15: {1: issuer, 2: subject}} >>, {}, payload, signature])

The key in the header says which key to look up; the key that verifies comes from the caller's trust set. The first
fault wins, in this order: structure, canonical form, header, trust, signature, payload, and trust again where it is
limited in time. What was received is what is verified and hashed: nothing is made again from decoded values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import cbor2
import nacl.bindings
import nacl.exceptions
from nacl.bindings import crypto_sign_open

from mesh.errors import (
    CanonicalError,
    EncodingError,
    HeaderError,
    PayloadError,
    SchemaError,
    SignatureError,
    UntrustedSteward,
)
from mesh.schema import cose
from mesh.schema.checkpoint import Checkpoint
from mesh.schema.cose import ALG_ED25519
from mesh.schema.ids import ContentId, Kind, steward_text
from mesh.schema.keys import check_public_key
from mesh.schema.launch import Launch
from mesh.schema.limits import MAX_PAYLOAD_BYTES
from mesh.schema.receipt import Receipt
from mesh.schema.trust import Trust

RECEIPT_TYPE = "application/mesh-receipt+cbor"
CHECKPOINT_TYPE = "application/mesh-checkpoint+cbor"
LAUNCH_TYPE = "application/mesh-launch+cbor"

COSE_RECEIPTS = 394  # RFC 9942: the one unprotected header that is let through

_HEADER_KEYS = (1, 3, 4, 15)


Statement = Receipt | Checkpoint | Launch


@dataclass(frozen=True, slots=True)
class _Type:
    """What an envelope type holds: its value, the subject that its header must name, and the fields with the time that
    its key must have been trusted at and with that key."""

    value: type[Statement]
    subject: Callable[[Any], str]
    at_ns: Callable[[Any], int]
    signer: str = "steward"


TYPES = {
    RECEIPT_TYPE: _Type(Receipt, lambda receipt: receipt.engine.recipe_id, attrgetter("ended_ns")),
    CHECKPOINT_TYPE: _Type(Checkpoint, lambda checkpoint: "checkpoint", attrgetter("at_ns")),
    LAUNCH_TYPE: _Type(Launch, attrgetter("recipe"), attrgetter("launched_ns"), signer="signer"),
}

_TYPE_OF = {one.value: name for name, one in TYPES.items()}
_KINDS: dict[type[Statement], Kind] = {Receipt: "receipt", Checkpoint: "checkpoint", Launch: "launch"}


class Sealed(NamedTuple):
    """A signed or checked envelope: its value, the exact payload bytes, and the bytes to store, without unprotected
    headers."""

    value: Any
    payload: bytes
    envelope: bytes

    @property
    def id(self) -> ContentId:
        """What names the payload. Made when it is asked for: a check does without."""
        return ContentId.of_canonical(_KINDS[type(self.value)], self.payload)


class SigningKey:
    """An Ed25519 key made of a 32-byte seed. Never printed."""

    __slots__ = ("_secret", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise SchemaError(f"signing seed: {len(seed)} bytes, expected 32")
        self.seed = seed
        self.public, self._secret = nacl.bindings.crypto_sign_seed_keypair(seed)

    def __repr__(self) -> str:
        return f"SigningKey(public={steward_text(self.public)!r})"

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature."""
        return nacl.bindings.crypto_sign(message, self._secret)[:64]


def seal(value: Statement, key: SigningKey) -> Sealed:
    """Sign a receipt, checkpoint or launch that names `key`. Raises SchemaError where it names another."""
    content_type = _TYPE_OF[type(value)]
    kind = TYPES[content_type]
    named: bytes = getattr(value, kind.signer)
    if named != key.public:
        raise SchemaError(f"{value.what()}: {kind.signer} is {steward_text(named)}, the key {steward_text(key.public)}")
    payload = value.to_cbor()
    protected = _protected_header(content_type, key.public, kind.subject(value))
    signature = key.sign(cose.to_be_signed(protected, payload))
    envelope = cose.assemble(protected, cose.NO_HEADER, payload, signature)
    return Sealed(value, payload, envelope)


def verify(data: bytes, content_type: str, trust: Collection[bytes]) -> Sealed:
    """Check an envelope of the given type against the keys in `trust`, which may be a `Trust` that also knows when each
    was good. Raises the EnvelopeError of the first fault, or UntrustedSteward."""
    split = cose.split(data)
    protected, unprotected, payload, signature = split or cose.take_apart(data)
    header = _read_header(protected)
    if not header.canonical or (
        split is None and data != cose.assemble(protected, cose.canonical_header(unprotected), payload, signature)
    ):
        raise CanonicalError("envelope: not the canonical encoding: a wider head, another order or trailing bytes")
    if header.fault is not None:
        raise HeaderError(f"envelope: {header.fault}")
    if header.content_type != content_type:
        raise HeaderError(f"envelope: content type is {header.content_type!r:.80}, expected {content_type!r}")
    if unprotected:
        _check_unprotected(unprotected)
    if header.kid not in trust:
        raise UntrustedSteward(f"steward {steward_text(header.kid)} is not in the trust set")
    message = cose.to_be_signed(protected, payload) if split is None else cose.signed_of(data, protected)
    verify_signature(header.kid, message, signature)
    kind = TYPES[content_type]
    try:
        value = kind.value.from_cbor(payload, max_bytes=MAX_PAYLOAD_BYTES)
    except (EncodingError, SchemaError) as e:
        raise PayloadError(f"payload: {e}") from None
    named: bytes = getattr(value, kind.signer)
    if named != header.kid:
        raise PayloadError(f"payload: {kind.signer} is {steward_text(named)}, the header says {header.issuer}")
    if kind.subject(value) != header.subject:
        raise PayloadError(f"payload: names {kind.subject(value)!r}, the header {header.subject!r:.80}")
    if isinstance(trust, Trust):
        trust.check_time(header.kid, kind.at_ns(value))
    stored = data if not unprotected else cose.assemble(protected, cose.NO_HEADER, payload, signature)
    return Sealed(value, payload, stored)


def verify_statement(data: bytes, trust: Collection[bytes]) -> Sealed:
    """A receipt or a checkpoint, whichever its header names. Raises as `verify` does."""
    try:
        return verify(data, RECEIPT_TYPE, trust)
    except HeaderError as as_receipt:
        try:
            return verify(data, CHECKPOINT_TYPE, trust)
        except HeaderError:
            raise as_receipt from None


def verify_signature(key: bytes, message: bytes, signature: bytes) -> None:
    """The only Ed25519 verification there is (libsodium: refuses S + L, small-order and non-canonical R and keys).
    Raises SignatureError."""
    check_public_key(key)
    try:
        crypto_sign_open(signature + message, key)
    except (nacl.exceptions.CryptoError, ValueError, TypeError):
        raise SignatureError("signature does not hold") from None


@dataclass(frozen=True, slots=True)
class _Header:
    canonical: bool
    fault: str | None
    content_type: str = ""
    kid: bytes = b""
    issuer: str = ""
    subject: str = ""


# A verifier meets the same few headers again and again: one per steward and model.
@lru_cache(maxsize=256)
def _read_header(protected: bytes) -> _Header:
    header = cose.parse_header(protected)

    def faulty(why: str) -> _Header:
        return _Header(cose.canonical_header(header) == protected, why)

    if any(type(key) is not int for key in header) or tuple(sorted(header)) != _HEADER_KEYS:
        return faulty("protected header must hold exactly 1, 3, 4 and 15")
    algorithm, content_type, kid, claims = (header[key] for key in _HEADER_KEYS)
    if type(algorithm) is not int or algorithm != ALG_ED25519:
        return faulty(f"algorithm is {algorithm!r:.80}, expected {ALG_ED25519} (Ed25519)")
    if type(content_type) is not str or type(kid) is not bytes or len(kid) != 32:
        return faulty("content type must be text and the key id 32 bytes")
    if type(claims) is not dict or any(type(key) is not int for key in claims) or sorted(claims) != [1, 2]:
        return faulty("claims must hold exactly issuer (1) and subject (2)")
    issuer, subject = claims[1], claims[2]
    if type(issuer) is not str or type(subject) is not str:
        return faulty("issuer and subject must be text")
    canonical = protected == _protected_header(content_type, kid, subject, issuer)
    fault = None if issuer == steward_text(kid) else f"issuer is {issuer[:80]!r}, the key id {steward_text(kid)}"
    return _Header(canonical, fault, content_type, kid, issuer, subject)


def _check_unprotected(unprotected: Mapping[Any, Any]) -> None:
    # 394.0 equals 394 and has an encoding of its own
    if list(unprotected) != [COSE_RECEIPTS] or type(next(iter(unprotected))) is not int:
        raise HeaderError("envelope: the unprotected header may hold COSE Receipts (394) alone")
    proofs = unprotected[COSE_RECEIPTS]
    if not isinstance(proofs, (list, tuple)) or not proofs or any(type(proof) is not bytes for proof in proofs):
        raise HeaderError("envelope: COSE Receipts must be an array of byte strings")


@lru_cache(maxsize=256)
def _protected_header(content_type: str, key: bytes, subject: str, issuer: str | None = None) -> bytes:
    claims = {1: issuer or steward_text(key), 2: subject}
    return cbor2.dumps({1: ALG_ED25519, 3: content_type, 4: key, 15: claims})
