"""What safetensors files hold, tensor by tensor: how a cut of a model is held against the whole that it came from.

Nothing but the standard library is needed here, so that a serving engine's own environment can import it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

from mesh.errors import EncodingError, ModelFileError
from mesh.identity.document import parse_document
from mesh.identity.files import open_regular

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own bound
_LENGTH_BYTES: Final = 8
_BUFFER_BYTES: Final = 1_048_576
_LAYER = re.compile(r"(?:^|\.)([0-9]{1,5})(?=\.)")

_Place = tuple[bytes, int, int]
"""A tensor's type and shape as they are digested, and where in the file its bytes begin and end."""


def tensor_digests(files: Mapping[str, Path]) -> dict[str, str]:
    """64 hex digits for each tensor in the `.safetensors` among `files`: SHA-256 over its type and shape in JSON, a
    line feed, and its bytes. Raises ModelFileError where a file is malformed or a tensor is there twice, OSError."""
    return {tensor: _digest(file, *place, name) for name, file, tensor, place in _tensors(files)}


def tensor_shapes(files: Mapping[str, Path]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type, as the file spells it, and the shape of each tensor in the `.safetensors` among `files`; no tensor is
    read. Raises ModelFileError where a file is malformed or a tensor is there twice, OSError."""
    shapes = {}
    for _, _, tensor, (spelled, _, _) in _tensors(files):
        kind, shape = json.loads(spelled)
        shapes[tensor] = (kind, tuple(shape))
    return shapes


def layer_of(tensor: str) -> int | None:
    """The layer that a tensor belongs to, by the first number in its name; None for one of no layer."""
    found = _LAYER.search(tensor)
    return None if found is None else int(found[1])


def layers_of(tensors: Iterable[str]) -> tuple[int, int] | None:
    """The first layer of which there is a tensor, and the one after the last; None where there is none."""
    layers = [layer for layer in map(layer_of, tensors) if layer is not None]
    return (min(layers), max(layers) + 1) if layers else None


def _tensors(files: Mapping[str, Path]) -> Iterator[tuple[str, BinaryIO, str, _Place]]:
    """The name of the file, the file, the tensor and its place in it."""
    seen: set[str] = set()
    for name in sorted(name for name in files if name.endswith(".safetensors")):
        with open_regular(files[name]) as file:
            for tensor, place in _header(file, name).items():
                if tensor in seen:
                    raise ModelFileError(f"{name}: tensor {tensor[:80]!a} is in another file too")
                seen.add(tensor)
                yield name, file, tensor, place


def _header(file: BinaryIO, name: str) -> dict[str, _Place]:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise ModelFileError(f"{name}: its header is {length} bytes, and the file has {size}")
    try:
        told = parse_document(file.read(length), f"{name}: its header", max_bytes=MAX_HEADER_BYTES)
    except EncodingError as e:
        raise ModelFileError(str(e)) from None
    if not isinstance(told, dict):
        raise ModelFileError(f"{name}: its header is no map of tensors")
    data = _LENGTH_BYTES + length
    told.pop("__metadata__", None)
    return {tensor: _place(entry, tensor, name, data, size) for tensor, entry in told.items()}


def _place(entry: Any, tensor: str, name: str, data: int, size: int) -> _Place:
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if isinstance(kind, str) and _counts(shape) and _counts(offsets) and len(offsets) == 2:
        start, end = offsets
        if start <= end <= size - data:
            spelled = json.dumps([kind, shape], separators=(",", ":")).encode() + b"\n"
            return spelled, data + start, data + end
    raise ModelFileError(f"{name}: tensor {tensor[:80]!a}: expected a type, a shape and its place within the file")


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _digest(file: BinaryIO, kind: bytes, start: int, end: int, name: str) -> str:
    hasher, left = hashlib.sha256(kind), end - start
    file.seek(start)
    while left:
        piece = file.read(min(left, _BUFFER_BYTES))
        if not piece:
            raise ModelFileError(f"{name}: was cut while it was read")
        hasher.update(piece)
        left -= len(piece)
    return hasher.hexdigest()
