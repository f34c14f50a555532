"""A model folder with a tokenizer of single bytes, small enough to be written by every test, and its text side."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

SPECIAL = ("<s>", "</s>", "<unk>")
EOS = 1
FIRST_BYTE = len(SPECIAL)
VOCABULARY = FIRST_BYTE + 256
CONTEXT = 2048
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_SPELLED = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


def rendered(messages: Iterable[Mapping[str, str]]) -> str:
    """What the template makes of a conversation."""
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"


def encode(text: str) -> list[int]:
    """A control token spelled in the text counts as one, as in a server."""
    ids: list[int] = []
    for part in _SPELLED.split(text):
        ids += [SPECIAL.index(part)] if part in SPECIAL else [FIRST_BYTE + byte for byte in part.encode()]
    return ids


def piece(token: int) -> bytes:
    return bytes([token - FIRST_BYTE]) if FIRST_BYTE <= token < VOCABULARY else b""


def text_of(ids: Sequence[int], *, special: bool = False) -> str:
    spelled = (SPECIAL[i].encode() if special and i < FIRST_BYTE else piece(i) for i in ids)
    return b"".join(spelled).decode(errors="replace")


def write_model_folder(
    folder: Path, *, weights: int = 0, dtype: str = "float32", template: str = TEMPLATE, **generation: Any
) -> Path:
    """Files as `save_pretrained` leaves them. `weights` changes the bytes of the one tensor, `generation` what
    generation_config.json says of sampling."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 0, "dtype": dtype, "eos_token_id": EOS,
        "hidden_size": 8, "max_position_embeddings": CONTEXT, "model_type": "llama", "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    special = [
        {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, content in enumerate(SPECIAL)
    ]  # fmt: skip
    vocab = {spelling: i for i, spelling in enumerate((*SPECIAL, *_alphabet()))}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "added_tokens": special, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    for name, content in {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": EOS} | generation,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": named,
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "model.safetensors").write_bytes(_tensor(weights))
    return folder


def _tensor(seed: int) -> bytes:
    """One tensor of four numbers, in the safetensors layout."""
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<4f", *(seed + i for i in range(4)))


def _alphabet() -> list[str]:
    """GPT-2's character for each byte, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]
