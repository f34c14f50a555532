"""The tensors that a GGUF header declares, and whether the file really holds them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

from mesh.identity.ggml import TENSOR_TYPES, TensorType
from mesh.identity.reader import Reader

MAX_TENSOR_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_EXTENT = 2**63 - 1  # elements and bytes: no file is longer, and native readers count in signed 64 bits

_UINT32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`dims` are in the file's order, the row length first; `offset` counts from the start of the file, in bytes."""

    name: str
    type: TensorType
    dims: tuple[int, ...]
    elements: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def read_tensors(reader: Reader, count: int, alignment: int) -> tuple[GgufTensor, ...]:
    """The tensors in the file's order. Their offsets count from the data's start, known once the last is read."""
    drafts = []
    names: set[str] = set()
    for i in range(count):
        start = reader.at
        name = reader.string(f"name of tensor {i}", MAX_TENSOR_NAME_BYTES)
        if name in names:
            raise reader.fault(f"tensor {name!r}", "name given twice", start)
        names.add(name)
        drafts.append(_read_tensor(reader, name, alignment))
    data_offset = aligned(reader.at, alignment)
    return tuple(
        GgufTensor(name, kind, dims, elements, data_offset + offset, size)
        for name, kind, dims, elements, offset, size in drafts
    )


def _read_tensor(reader: Reader, name: str, alignment: int) -> tuple[str, TensorType, tuple[int, ...], int, int, int]:
    field = f"tensor {name!r}"
    start = reader.at
    rank = reader.number(f"{field} dimension count", _UINT32)
    if rank > MAX_DIMENSIONS:
        raise reader.fault(f"{field} dimension count", f"{rank}, expected at most {MAX_DIMENSIONS}", start)
    dims, elements = [], 1
    for axis in range(int(rank)):
        start = reader.at
        dim = reader.length(f"{field} dimension {axis}", MAX_EXTENT)
        if not dim:
            raise reader.fault(f"{field} dimension {axis}", "is 0", start)
        elements *= dim
        if elements > MAX_EXTENT:
            fault = f"{dim} makes {elements} elements, expected at most {MAX_EXTENT}"
            raise reader.fault(f"{field} dimension {axis}", fault, start)
        dims.append(dim)
    start = reader.at
    number = int(reader.number(f"{field} type", _UINT32))
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise reader.fault(f"{field} type", f"unknown tensor type {number}", start)
    row = dims[0] if dims else 1
    if row % kind.block:
        raise reader.fault(f"{field} dimension 0", f"{row}, expected a multiple of {kind.block} for {kind.name}", start)
    size = elements // kind.block * kind.block_bytes
    if size > MAX_EXTENT:
        raise reader.fault(f"{field} size", f"{size} bytes, expected at most {MAX_EXTENT}", start)
    start = reader.at
    offset = reader.length(f"{field} offset", MAX_EXTENT)
    if offset % alignment:
        raise reader.fault(f"{field} offset", f"{offset}, expected a multiple of {alignment}", start)
    if offset + size > MAX_EXTENT:
        raise reader.fault(f"{field} offset", f"{offset} plus {size} bytes is more than any file holds", start)
    return name, kind, tuple(dims), elements, offset, size


def check_extents(reader: Reader, tensors: tuple[GgufTensor, ...]) -> int:
    """Where the last tensor ends. Two tensors on the same bytes are refused: one of them is not what it seems."""
    if not tensors:
        return reader.at
    last = max(tensors, key=lambda tensor: tensor.end)
    if last.end > reader.size:
        raise reader.fault(
            f"tensor {last.name!r}", f"declared end {last.end}, file has {reader.size} bytes", last.offset
        )
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if after.offset < before.end:
            raise reader.fault(
                f"tensor {after.name!r}", f"overlaps tensor {before.name!r}, which ends at {before.end}", after.offset
            )
    return last.end


def aligned(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` at or after `offset`."""
    return -(-offset // alignment) * alignment
