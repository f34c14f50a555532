"""What crosses the pipe between an engine and a child: length-prefixed canonical CBOR maps.

A frame is a u32 big-endian length and that many bytes. Each map has an `op` that fixes its other fields; both sides
refuse anything else, so that a child gone wrong is noticed at the first byte and never interpreted. Little is imported
here: a child holds all of it once more.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from mesh.errors import EncodingError, EngineFailed
from mesh.schema import canonical

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024  # the pieces of a vocabulary of a million ids, a prompt of 16 million ids
_HEAD: Final = struct.Struct(">I")

Known = dict[str, dict[str, type]]  # for each op its fields


def pack_frame(message: dict[str, Any]) -> bytes:
    body = canonical.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise EngineFailed(f"engine pipe: frame of {len(body)} bytes, at most {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body)) + body


class FrameReader:
    """Takes bytes as they come and gives the maps that are complete, each checked against `known`. Raises EngineFailed
    at the first byte that cannot belong to a right frame; nothing can be read after that."""

    def __init__(self, known: Known, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._known = known
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self._pending += data
        messages = []
        while len(self._pending) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._pending)
            if not 0 < length <= self._max_bytes:
                raise EngineFailed(f"engine pipe: frame of {length} bytes, expected 1 to {self._max_bytes}")
            end = _HEAD.size + length
            if len(self._pending) < end:
                break
            messages.append(self._message(bytes(self._pending[_HEAD.size : end])))
            del self._pending[:end]
        return messages

    def finish(self) -> None:
        """Say that the stream ended. Raises EngineFailed where it ended inside a frame."""
        if self._pending:
            raise EngineFailed(f"engine pipe: ended {len(self._pending)} bytes into a frame")

    def _message(self, body: bytes) -> dict[str, Any]:
        try:
            message = canonical.decode_map(body, max_bytes=self._max_bytes)
        except EncodingError as e:
            raise EngineFailed(f"engine pipe: {e}") from None
        fields = self._known.get(op) if isinstance(op := message.get("op"), str) else None
        if fields is None:
            raise EngineFailed("engine pipe: unknown op")
        if message.keys() != fields.keys() | {"op"}:
            raise EngineFailed(f"engine pipe: {op} does not have its fields, expected {', '.join(sorted(fields))}")
        for name, kind in fields.items():
            if type(message[name]) is not kind:
                raise EngineFailed(f"engine pipe: {op}.{name} is {type(message[name]).__name__}, not {kind.__name__}")
        return message
