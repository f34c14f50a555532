"""A salted commitment to the output. A plain hash would give a short answer away to anyone who can guess it."""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.request import pack_ids


def opening_key(signing_seed: bytes) -> bytes:
    """32 bytes from the steward's 32-byte signing seed, so that a restarted steward can still disclose."""
    return blake3(_sized("signing seed", signing_seed, 32), derive_key_context="mesh/1 opening-key").digest()


def opening(key: bytes, request_id: bytes, serve_id: bytes) -> bytes:
    """The 32-byte salt of one serve. Two serves of one request do not share it."""
    data = _sized("request id", request_id, 32) + _sized("serve id", serve_id, 16)
    return blake3(data, key=_sized("opening key", key, 32)).digest()


def output_commitment(opening: bytes, request_id: bytes, payload_digest: bytes, ids: Sequence[int]) -> bytes:
    """32 bytes that bind the output `ids` to this request, this payload and this opening."""
    data = b"".join(
        (
            _sized("opening", opening, 32),
            _sized("request id", request_id, 32),
            _sized("payload digest", payload_digest, 32),
            len(ids).to_bytes(8, "little"),
            pack_ids(ids),
        )
    )
    return blake3(data, derive_key_context="mesh/1 output-commitment").digest()


def _sized(what: str, data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise SchemaError(f"{what}: {len(data)} bytes, expected {size}")
    return data
