"""Names that say what they commit to: content ids, stewards, serve ids, and their text forms."""

from __future__ import annotations

import re
import uuid
from typing import Any, Literal, get_args

from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.canonical import encode

Kind = Literal["receipt", "request", "weights", "settings", "launch", "route", "grant-block", "checkpoint", "head"]
KINDS: tuple[str, ...] = get_args(Kind)

# Used as derive-key contexts for byte layouts of their own, so never as kinds of a value.
RESERVED_KINDS = ("payload", "opening-key", "output-commitment")

_CONTEXTS = {kind: f"mesh/1 {kind}" for kind in KINDS}

_HEX64 = re.compile(r"[0-9a-f]{64}\Z")


class ContentId(bytes):
    """A 32-byte BLAKE3 digest. Its text form, `b3:<64 hex>`, is for JSON, headers and URLs only."""

    def __new__(cls, digest: bytes) -> ContentId:
        if len(digest) != 32:
            raise SchemaError(f"content id: {len(digest)} bytes, expected 32")
        return super().__new__(cls, digest)

    @classmethod
    def of(cls, kind: Kind, value: Any) -> ContentId:
        """The id of a value within the structure that `kind` names."""
        return cls.of_canonical(kind, encode(value))

    @classmethod
    def of_canonical(cls, kind: Kind, canonical: bytes) -> ContentId:
        """`of` for bytes that are known to be the value's canonical encoding."""
        try:
            context = _CONTEXTS[kind]
        except KeyError:
            raise SchemaError(f"content id: unknown kind {kind!r}") from None
        # to derive the key again takes less than to copy a hasher that has it
        return bytes.__new__(cls, blake3(canonical, derive_key_context=context).digest())

    @classmethod
    def of_bytes(cls, data: bytes) -> ContentId:
        """Plain BLAKE3-256, what `b3sum` prints."""
        return cls(blake3(data).digest())

    @classmethod
    def from_text(cls, text: str) -> ContentId:
        prefix, _, rest = text.partition(":")
        if prefix != "b3" or not _HEX64.match(rest):
            raise SchemaError(f"content id: expected b3:<64 lower-case hex>, got {text[:80]!r}")
        return cls(bytes.fromhex(rest))

    @property
    def text(self) -> str:
        return "b3:" + self.hex()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ContentId({self.text!r})"


def steward_text(key: bytes) -> str:
    """`ed25519:<64 hex>` of a 32-byte Ed25519 public key."""
    if len(key) != 32:
        raise SchemaError(f"steward: {len(key)} bytes, expected 32")
    return "ed25519:" + key.hex()


def steward_from_text(text: str) -> bytes:
    prefix, _, rest = text.partition(":")
    if prefix != "ed25519" or not _HEX64.match(rest):
        raise SchemaError(f"steward: expected ed25519:<64 lower-case hex>, got {text[:80]!r}")
    return bytes.fromhex(rest)


def serve_id_from(unix_ms: int, random: bytes) -> bytes:
    """A UUIDv7 (RFC 9562) from a Unix time in milliseconds and 10 random bytes."""
    if len(random) != 10:
        raise SchemaError(f"serve id: {len(random)} random bytes, expected 10")
    raw = bytearray((unix_ms & (2**48 - 1)).to_bytes(6, "big") + random)
    raw[6] = 0x70 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    return bytes(raw)


def serve_id_text(serve_id: bytes) -> str:
    if len(serve_id) != 16:
        raise SchemaError(f"serve id: {len(serve_id)} bytes, expected 16")
    told = serve_id.hex()
    return f"{told[:8]}-{told[8:12]}-{told[12:16]}-{told[16:20]}-{told[20:]}"


def serve_id_from_text(text: str) -> bytes:
    try:
        value = uuid.UUID(text)
    except ValueError:
        value = None
    if value is None or str(value) != text:
        raise SchemaError(f"serve id: expected a lower-case UUID, got {text[:80]!r}")
    return value.bytes
