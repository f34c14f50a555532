"""A Llama small enough to be served by a real vLLM on any CPU, as a Hugging Face folder, without any of their packages.

Its weights are wide: with a usual initialisation greedy output collapses to one token, and a test on it proves little.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 2048
HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD = 128, 256, 2, 4, 2, 32
SPECIAL = ("<s>", "</s>")
MERGES = ("t h", "th e", "i n", "Ġ a", "Ġ the", "e r", "o n", "a n", "Ġ i", "o r")
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_tiny_hf(
    folder: Path, *, seed: int = 0, defaults: dict[str, Any] | None = None, context: int = CONTEXT, layers: int = LAYERS
) -> Path:
    """The folder. `defaults` are sampling defaults for its generation_config.json, `context` is in tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
            "vocab_size": len(vocabulary), "hidden_size": HIDDEN, "intermediate_size": MLP,
            "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD, "max_position_embeddings": context, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **(defaults or {})},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
            "pad_token": "</s>", "model_max_length": context, "clean_up_tokenization_spaces": False,
        },
        "tokenizer.json": _tokenizer(vocabulary),
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_safetensors(folder / "model.safetensors", _weights(len(vocabulary), seed, layers))
    return folder


def cut_tiny_hf(whole: Path, folder: Path, first: int, end: int, *, off: str | None = None) -> Path:
    """A folder with the layers from `first` to before `end` of a model, the embedding with the first of all layers and
    what follows the last with that. The matrix `off` is 5 % larger than it should be."""
    shutil.copytree(whole, folder)
    layers = json.loads((whole / "config.json").read_text())["num_hidden_layers"]

    def here(name: str) -> bool:
        parts = name.split(".")
        at = int(parts[2]) if parts[1] == "layers" else 0 if parts[1] == "embed_tokens" else layers - 1
        return first <= at < end

    held = {name: tensor for name, tensor in _read_safetensors(whole / "model.safetensors").items() if here(name)}
    if off is not None:
        held[off] = held[off] * np.float32(1.05)
    write_safetensors(folder / "model.safetensors", held)
    return folder


def _read_safetensors(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    raw = path.read_bytes()
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])
    return {
        name: np.frombuffer(raw[data + entry["data_offsets"][0] : data + entry["data_offsets"][1]], "<f4").reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _vocabulary() -> dict[str, int]:
    words = [*SPECIAL, *_byte_letters(), *("".join(merge.split()) for merge in MERGES)]
    return {word: number for number, word in enumerate(words)}


def _byte_letters() -> list[str]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for letters from 256 on, all in byte order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": vocabulary[word], "content": word, **special} for word in SPECIAL],
        "pre_tokenizer": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [merge.split() for merge in MERGES],
        },
    }  # fmt: skip


def _weights(vocabulary: int, seed: int, layers: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    random = np.random.default_rng(seed)

    def wide(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return random.normal(0, 0.15, shape).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": wide(vocabulary, HIDDEN), "model.norm.weight": ones}
    for n in range(layers):
        layer = f"model.layers.{n}."
        for part, rows, columns in (
            ("self_attn.q_proj", HEADS * HEAD, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN), ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
            ("mlp.gate_proj", MLP, HIDDEN), ("mlp.up_proj", MLP, HIDDEN), ("mlp.down_proj", HIDDEN, MLP),
        ):  # fmt: skip
            weights[f"{layer}{part}.weight"] = wide(rows, columns)
        weights[f"{layer}input_layernorm.weight"] = weights[f"{layer}post_attention_layernorm.weight"] = ones
    weights["lm_head.weight"] = wide(vocabulary, HIDDEN)
    return weights


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.astype("<f4").tobytes())
