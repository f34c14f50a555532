"""Model folders of Hugging Face's kind, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.hf_tokenizer import read_hf_tokenizer
from mesh.errors import ModelFileError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FUSE, FALLBACK = {"type": "Fuse"}, {"type": "ByteFallback"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def sequence(*decoders: Any) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(decoders)}


def added(token: int, content: str, *, special: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, "special": special, **flags}


def document(vocab: Any, *tokens: dict[str, Any], decoder: Any = None, **model: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": list(tokens),
        "decoder": BYTE_LEVEL if decoder is None else decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], **model},
    }


def write_folder(folder: Path, tokenizer: Any, **files: Any) -> Path:
    """`files`: names with `__` for the dot; bytes are written as they are."""
    for name, content in {"tokenizer__json": tokenizer, **files}.items():
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


def refused(folder: Path, *words: str) -> ModelFileError:
    """The fault that reading the folder's tokenizer ends in, once it was seen to say `words`."""
    with pytest.raises(ModelFileError) as caught:
        read_hf_tokenizer(folder)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()
    return caught.value
