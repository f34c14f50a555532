"""COSE_Sign1 (RFC 9052) as bytes: taken apart, put together, and what of it is signed. Who may sign, and what, is for
those who use it.

    18([protected, unprotected, payload, signature])
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import cbor2

from mesh.errors import EncodingError, StructureError
from mesh.schema.canonical import parse
from mesh.schema.limits import MAX_ENVELOPE_BYTES, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES

ALG_ED25519 = -19  # RFC 9864
NO_HEADER = b"\xa0"

_TAG_SIGN1 = b"\xd2\x84"
_SIGNATURE_HEAD = b"\x58\x40"
_SIGNATURE_BYTES = len(_SIGNATURE_HEAD) + 64
_CONTEXT = b"\x84\x6aSignature1"

Parts = tuple[bytes, Mapping[Any, Any], bytes, bytes]
"""Protected header, unprotected header, payload, signature."""
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


def split(data: bytes) -> Parts | None:
    """The parts of an envelope that is canonical and has no unprotected header, cut out by position. None for anything
    else, which then has to be parsed to say what is wrong with it. Says nothing of the protected header's own form."""
    if not data.startswith(_TAG_SIGN1) or len(data) > MAX_ENVELOPE_BYTES:
        return None
    try:
        start, end = _bstr_span(data, len(_TAG_SIGN1))
        payload_start, payload_end = _bstr_span(data, end + 1)
    except IndexError:
        return None
    signature = data[payload_end + 2 :]
    if (
        data[end] != 0xA0
        or data[payload_end : payload_end + 2] != _SIGNATURE_HEAD
        or len(signature) != 64
        or payload_end - payload_start > MAX_PAYLOAD_BYTES
    ):
        return None
    return data[start:end], _EMPTY, data[payload_start:payload_end], signature


def take_apart(data: bytes) -> Parts:
    """The parts of any spelling. Raises StructureError."""
    try:
        tagged = parse(data, max_bytes=MAX_ENVELOPE_BYTES)
    except EncodingError as e:
        raise StructureError(f"envelope: {e}") from None
    if not isinstance(tagged, cbor2.CBORTag) or tagged.tag != 18:
        raise StructureError("envelope: not a COSE_Sign1 (tag 18)")
    parts = tagged.value
    if not isinstance(parts, (list, tuple)) or len(parts) != 4:
        raise StructureError("envelope: not an array of four")
    protected, unprotected, payload, signature = parts
    if _holds_tag(parts):
        raise StructureError("envelope: a tag within it")
    if type(protected) is not bytes or not isinstance(unprotected, Mapping):
        raise StructureError("envelope: headers are not a byte string and a map")
    if type(payload) is not bytes or len(payload) > MAX_PAYLOAD_BYTES:
        raise StructureError(f"envelope: payload is not a byte string of at most {MAX_PAYLOAD_BYTES} bytes")
    if type(signature) is not bytes or len(signature) != 64:
        raise StructureError("envelope: signature is not 64 bytes")
    return protected, unprotected, payload, signature


def parse_header(protected: bytes) -> dict[Any, Any]:
    """The map in a protected header, in any spelling. Raises StructureError."""
    try:
        header = parse(protected, max_bytes=MAX_HEADER_BYTES)
    except EncodingError as e:
        raise StructureError(f"protected header: {e}") from None
    if type(header) is not dict:
        raise StructureError("protected header: not a map")
    if _holds_tag(header):
        raise StructureError("protected header: a tag within it")
    return header


def canonical_header(value: Any) -> bytes:
    """A header's one encoding. cbor2's own canonical order puts short keys first, RFC 8949 section 4.2.1 does not."""
    if isinstance(value, Mapping):
        pairs = sorted((canonical_header(key), canonical_header(content)) for key, content in value.items())
        return _head(0xA0, len(pairs)) + b"".join(itertools.chain.from_iterable(pairs))
    if isinstance(value, (list, tuple)):
        return _head(0x80, len(value)) + b"".join(map(canonical_header, value))
    return cbor2.dumps(value, canonical=True)


def to_be_signed(protected: bytes, payload: bytes, external_aad: bytes = b"") -> bytes:
    """RFC 9052 section 4.4: ["Signature1", protected, external_aad, payload]."""
    head = _bstr_head
    parts = (_CONTEXT, head(protected), protected, head(external_aad), external_aad, head(payload), payload)
    return b"".join(parts)


def signed_of(data: bytes, protected: bytes) -> bytes:
    """`to_be_signed` of an envelope that `split` cut: its byte strings are in it as they are signed, heads and all."""
    end = len(_TAG_SIGN1) + (2 if len(protected) < 0x100 else 3) + len(protected)
    return b"".join((_CONTEXT, data[len(_TAG_SIGN1) : end], b"\x40", data[end + 1 : -_SIGNATURE_BYTES]))


def assemble(protected: bytes, unprotected: bytes, payload: bytes, signature: bytes) -> bytes:
    parts = (_bstr_head(protected), protected, unprotected, _bstr_head(payload), payload)
    return b"".join((_TAG_SIGN1, *parts, _SIGNATURE_HEAD, signature))


def _bstr_span(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the byte string at `at` starts and ends. Raises IndexError where there is none of 24 to
    65535 bytes with the narrowest head."""
    head = data[at]
    if head == 0x58 and (size := data[at + 1]) >= 24:
        return at + 2, at + 2 + size
    if head == 0x59 and (size := data[at + 1] << 8 | data[at + 2]) >= 256:
        return at + 3, at + 3 + size
    raise IndexError


def _holds_tag(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tag(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tag, value))
    return isinstance(value, cbor2.CBORTag)


def _bstr_head(data: bytes) -> bytes:
    size = len(data)
    return _SHORT_HEADS[size] if size < 0x100 else _head(0x40, size)


def _head(major: int, size: int) -> bytes:
    """Raises ValueError from 65536 on: nothing in an envelope is as large."""
    if size < 24:
        return bytes((major | size,))
    if size < 0x100:
        return bytes((major | 0x18, size))
    return bytes((major | 0x19, size >> 8, size & 0xFF))


_SHORT_HEADS = tuple(_head(0x40, size) for size in range(0x100))
