"""What a replayer needs beside the receipt. It holds the prompt's ids, so it goes to the caller of the serve alone."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from mesh.errors import SchemaError
from mesh.schema.canonical import encode
from mesh.schema.ids import ContentId
from mesh.schema.limits import MAX_DISCLOSURE_BYTES, MAX_SETTINGS_BYTES
from mesh.schema.request import ServeRequest, pack_ids, unpack_ids
from mesh.schema.value import Digest, Id16, Value

DISCLOSURE_TYPE = "application/mesh-disclosure+cbor"

_PackedIds = Annotated[bytes, Meta(max_length=MAX_DISCLOSURE_BYTES)]


class Disclosure(Value):
    """`payload` and `output` are token ids packed as little-endian u32; `settings` is the engine's settings document;
    `prompt` the rendered prompt's text.
    `output` and `prompt` may be left out, by choice or because nobody kept them."""

    serve_id: Id16
    request: ServeRequest
    payload: _PackedIds
    opening: Digest
    settings: dict[str, Any]
    output: _PackedIds | None = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        settings_digest(self.settings)  # refuses what has no encoding or is too long
        for name, packed in (("payload", self.payload), ("output", self.output or b"")):
            if len(packed) % 4:
                raise ValueError(f"{name}: {len(packed)} bytes, not a multiple of 4")

    def to_cbor(self) -> bytes:
        return encode(self.to_map())  # settings are an open map, so their keys still need ordering

    @classmethod
    def from_bytes(cls, data: bytes) -> Disclosure:
        return cls.from_cbor(data, max_bytes=MAX_DISCLOSURE_BYTES)

    @property
    def payload_ids(self) -> list[int]:
        return unpack_ids(self.payload)

    @property
    def output_ids(self) -> list[int] | None:
        return None if self.output is None else unpack_ids(self.output)


def settings_digest(settings: dict[str, Any]) -> ContentId:
    """The id of a settings document: a map of everything in an engine that moves its numbers."""
    data = encode(settings)
    if len(data) > MAX_SETTINGS_BYTES:
        raise SchemaError(f"settings: {len(data)} bytes, at most {MAX_SETTINGS_BYTES}")
    return ContentId.of_canonical("settings", data)


__all__ = ["DISCLOSURE_TYPE", "Disclosure", "pack_ids", "settings_digest", "unpack_ids"]
