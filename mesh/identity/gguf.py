"""What a GGUF file says about itself, read with every count, length and size held against a bound before it is used.

Model files come from strangers, and the native loader believes them. So this reader sees a file first: it allocates no
more than the header's own bytes, computes sizes in exact integers, and compares the end of the last tensor with the
file's real size. Nothing here maps the file. Every fault is a ModelFileError that names the field and, where it has
one, its offset.

Accepted beyond the letter of the format: gaps between tensors, and bytes after the last one (writers pad there, and
no engine reads them). Both are in the weights digest, which covers every byte of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mesh.identity.files import open_regular
from mesh.identity.metadata import Metadata, read_metadata
from mesh.identity.reader import Reader
from mesh.identity.tensors import GgufTensor, aligned, check_extents, read_tensors
from mesh.schema.limits import MAX_TOKEN_ID

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 1 has 32-bit counts and no engine reads it any more

MAX_PAIRS = 16_384  # real models have under a hundred
MAX_TENSORS = 65_536
MAX_BLOCKS = 512
MAX_ALIGNMENT = 1_048_576
DEFAULT_ALIGNMENT = 32
MAX_CONTEXT_TOKENS = 2**31 - 1
MAX_SHARDS = 99_999  # five digits in a shard's name

_ARCHITECTURE = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_BLOCK = re.compile(r"(?:^|\.)blk\.([0-9]+)\.")
# Arrays with one element per token, which the native loader indexes by token id without looking at their length.
_PER_TOKEN = {"tokenizer.ggml.scores": ("f32",), "tokenizer.ggml.token_type": ("i32", "u32")}


@dataclass(frozen=True, slots=True)
class Split:
    """What one shard of several says of its place: `number` counts from 0, `tensors` is the number in all shards
    together."""

    number: int
    count: int
    tensors: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """One file's header, checked. What the file does not say is None; nothing is filled in.

    `label` is what errors call the file. `data_offset` is where tensor data may start, `data_end` where the last tensor
    ends (the header, where there is none), both in bytes. All but the first shard of a split model have nothing to say
    but their tensors and their place.
    """

    label: str
    version: int
    file_size: int
    alignment: int
    data_offset: int
    data_end: int
    metadata: Metadata
    tensors: tuple[GgufTensor, ...]
    split: Split | None
    architecture: str | None
    name: str | None
    context_length: int | None
    block_count: int | None
    tokenizer_model: str | None
    tokenizer_pre: str | None
    token_count: int | None
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos_token: bool | None
    chat_template: str | None


def read_header(source: Path | BinaryIO, *, label: str | None = None) -> GgufHeader:
    """Read and check one file's header. A file object must be seekable, and is read from its start.

    Raises ModelFileError for anything wrong with the file, OSError where it cannot be opened or read.
    """
    if isinstance(source, Path):
        with open_regular(source) as file:
            return read_header(file, label=label or source.name)
    reader = Reader(source, label or "gguf")
    version = _read_version(reader)
    tensor_count = reader.length("tensor_count", MAX_TENSORS)
    pair_count = reader.length("metadata_kv_count", MAX_PAIRS)
    metadata = read_metadata(reader, pair_count)
    alignment = _alignment(metadata)
    tensors = read_tensors(reader, tensor_count, alignment)
    data_end = check_extents(reader, tensors)
    architecture = _architecture(metadata)
    token_count = _token_count(metadata)
    last_token = MAX_TOKEN_ID if token_count is None else token_count - 1
    header = GgufHeader(
        label=reader.label,
        version=version,
        file_size=reader.size,
        alignment=alignment,
        data_offset=aligned(reader.at, alignment),
        data_end=data_end,
        metadata=metadata,
        tensors=tensors,
        split=_split(metadata),
        architecture=architecture,
        name=metadata.text("general.name"),
        context_length=metadata.integer(f"{architecture}.context_length", minimum=1, maximum=MAX_CONTEXT_TOKENS),
        block_count=metadata.integer(f"{architecture}.block_count", maximum=MAX_BLOCKS),
        tokenizer_model=metadata.text("tokenizer.ggml.model"),
        tokenizer_pre=metadata.text("tokenizer.ggml.pre"),
        token_count=token_count,
        bos_token_id=metadata.integer("tokenizer.ggml.bos_token_id", maximum=last_token),
        eos_token_id=metadata.integer("tokenizer.ggml.eos_token_id", maximum=last_token),
        add_bos_token=metadata.flag("tokenizer.ggml.add_bos_token"),
        chat_template=metadata.text("tokenizer.chat_template"),
    )
    if architecture is None and not (header.split and header.split.number):
        raise metadata.fault("general.architecture", "missing, expected the name of a model architecture")
    if header.split is None:
        check_blocks(header, tensors)
    return header


def _read_version(reader: Reader) -> int:
    magic = reader.take("magic", len(MAGIC))
    if magic == MAGIC[::-1]:
        raise reader.fault("magic", f"reversed magic {magic!r}, expected {MAGIC!r}", 0)
    if magic != MAGIC:
        raise reader.fault("magic", f"{magic!r}, expected {MAGIC!r}: not a GGUF file", 0)
    start = reader.at
    raw = reader.take("version", 4)
    version, swapped = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if version in VERSIONS:
        return version
    if swapped in range(1, 0x10000):  # the magic is the same in both byte orders; only this number tells
        raise reader.fault("version", f"big-endian file (version {swapped}), expected little-endian", start)
    raise reader.fault("version", f"{version}, expected {' or '.join(map(str, VERSIONS))}", start)


def _alignment(metadata: Metadata) -> int:
    value = metadata.integer("general.alignment", minimum=1, maximum=MAX_ALIGNMENT)
    if value is None:
        return DEFAULT_ALIGNMENT
    if metadata.kind("general.alignment") != "u32" or value.bit_count() != 1:
        kind = metadata.kind("general.alignment")
        raise metadata.fault("general.alignment", f"{value} of kind {kind}, expected a power of two of kind u32")
    return value


def _architecture(metadata: Metadata) -> str | None:
    value = metadata.text("general.architecture")
    if value is not None and not _ARCHITECTURE.match(value):
        raise metadata.fault("general.architecture", f"{value[:80]!r}, expected a short name of ASCII letters")
    return value


def _token_count(metadata: Metadata) -> int | None:
    """The length of the vocabulary, with everything that is indexed by token held against it."""
    tokens = metadata.array("tokenizer.ggml.tokens")
    for key, kinds in _PER_TOKEN.items():
        values = metadata.array(key)
        if values is None:
            continue
        if tokens is None or values.count != tokens.count:
            expected = "none without a vocabulary" if tokens is None else f"{tokens.count} as there are tokens"
            raise metadata.fault(key, f"{values.count} long, expected {expected}")
        if values.kind not in kinds:
            raise metadata.fault(key, f"an array of {values.kind}, expected {' or '.join(kinds)}")
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        strings = metadata.array(key)
        if strings is not None and strings.kind != "string":
            raise metadata.fault(key, f"an array of {strings.kind}, expected string")
    return None if tokens is None else tokens.count


def _split(metadata: Metadata) -> Split | None:
    count = metadata.integer("split.count", maximum=MAX_SHARDS)
    number = metadata.integer("split.no", maximum=(count or 1) - 1)
    tensors = metadata.integer("split.tensors.count")
    return Split(number or 0, count, tensors) if count and count > 1 else None


def check_blocks(first: GgufHeader, tensors: Iterable[GgufTensor]) -> None:
    """Hold the layer count of a whole model against its tensors: the loader reserves memory for each layer declared.

    Layers may lack tensors in the middle (pruned models) and at the end as far as they only predict ahead (files are
    published with and without those). Raises ModelFileError.
    """
    present = {int(match[1][:9]) for tensor in tensors if (match := _BLOCK.search(tensor.name))}
    highest = max(present, default=-1) + 1
    field = f"{first.architecture}.block_count"
    declared = first.block_count
    limit = MAX_BLOCKS if declared is None else declared
    ahead = first.metadata.integer(f"{first.architecture}.nextn_predict_layers") or 0
    if highest > limit or (declared is not None and highest < declared - ahead):
        raise first.metadata.fault(field, f"{declared}, the tensors are for {highest}")
