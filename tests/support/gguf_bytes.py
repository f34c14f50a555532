"""GGUF files put together by hand, field by field, so that each can be wrong in exactly one way."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import pytest

from mesh.errors import ModelFileError
from mesh.identity.gguf import GgufHeader, read_header

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: object) -> bytes:
    if kind == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    return struct.pack("<" + _CODES[kind], content)


def pair(key: str, kind: int, content: object) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def array(key: str, kind: int, contents: Sequence[object], *, count: int | None = None) -> bytes:
    """`count` is what the file claims, the true length unless given."""
    claimed = len(contents) if count is None else count
    return string(key) + struct.pack("<IIQ", ARRAY, kind, claimed) + b"".join(value(kind, item) for item in contents)


def tensor(name: str, dims: Sequence[int], number: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    architecture: str | None = "llama",
    alignment: int = 32,
) -> bytes:
    """`alignment` pads the header; a file that also claims it needs the pair."""
    if architecture is not None:
        pairs = [pair("general.architecture", STRING, architecture), *pairs]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def small_model() -> bytes:
    """A whole model in about 900 bytes: one block, five tokens, two tensors."""
    return gguf(
        [
            pair("general.name", STRING, "small"),
            pair("llama.context_length", U32, 128),
            pair("llama.block_count", U32, 1),
            pair("llama.rope.freq_base", F32, 10000.0),
            array("llama.attention.head_count_kv", I32, [1]),
            pair("tokenizer.ggml.model", STRING, "gpt2"),
            pair("tokenizer.ggml.pre", STRING, "smollm"),
            array("tokenizer.ggml.tokens", STRING, ["<s>", "</s>", "a", "b", b"\xe2\x82"]),
            array("tokenizer.ggml.token_type", I32, [3, 3, 1, 1, 1]),
            array("tokenizer.ggml.scores", F32, [0.0, 0.0, -1.0, -2.0, -3.0]),
            array("tokenizer.ggml.merges", STRING, ["a b"]),
            pair("tokenizer.ggml.bos_token_id", U32, 0),
            pair("tokenizer.ggml.eos_token_id", U32, 1),
            pair("tokenizer.ggml.add_bos_token", BOOL, 1),
            pair("tokenizer.chat_template", STRING, "{{ messages }}"),
        ],
        [tensor("blk.0.attn_q.weight", [32, 2], 8, 0), tensor("output_norm.weight", [8], 0, 96)],
        bytes(96 + 32),
    )


def read(raw: bytes) -> GgufHeader:
    return read_header(io.BytesIO(raw), label="model.gguf")


def refusal(raw: bytes) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read(raw)
    assert str(caught.value).startswith("model.gguf: ")
    return caught.value
