"""Models that no package brings: one quantized otherwise, and one that is larger, of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from tests.support.tiny_gguf import MERGES, SPECIALS, vocabulary

_CONTROL, _NORMAL = 3, 1
# A gigabyte as Q8_0: more than any cache, so that decoding waits for memory.
WIDTH, INNER, HEADS, KV_HEADS, LAYERS = 2048, 5632, 32, 4, 22
_BLOCK: Final = 32  # weights, under one scale


def requantized(source: Path, target: Path) -> Path:
    """The model with its Q4_1 matrices as Q4_0, all else as it is."""
    reader = gguf.GGUFReader(source)
    architecture = str(bytes(reader.fields["general.architecture"].parts[-1]), "utf-8")
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    to = gguf.GGMLQuantizationType.Q4_0
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, to), raw_dtype=to)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return _written(writer, target)


def larger(target: Path, layers: int = LAYERS) -> Path:
    """A llama of 44 million weights a layer as Q8_0, written as blocks: nobody has to hold them as floats."""
    writer, tokens, draw = gguf.GGUFWriter(target, "llama"), vocabulary(), np.random.default_rng(1)
    writer.add_name("larger-random-llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL] * len(SPECIALS) + [_NORMAL] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    kv, kind = WIDTH * KV_HEADS // HEADS, gguf.GGMLQuantizationType.Q8_0

    def matrix(name: str, rows: int, columns: int, spread: float) -> None:
        blocks = _blocks(draw, rows * columns // _BLOCK, spread).reshape(rows, -1)
        writer.add_tensor(name, blocks, raw_dtype=kind)

    spread = 2 * WIDTH**-0.5
    matrix("token_embd.weight", len(tokens), WIDTH, 1.0)
    matrix("output.weight", len(tokens), WIDTH, 0.1)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(layers):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH), ("attn_k", kv, WIDTH), ("attn_v", kv, WIDTH), ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH), ("ffn_up", INNER, WIDTH), ("ffn_down", WIDTH, INNER),
        ):  # fmt: skip
            matrix(f"{block}.{name}.weight", rows, columns, spread)
    return _written(writer, target)


def _blocks(draw: np.random.Generator, count: int, spread: float) -> Any:
    """Q8_0 blocks of a scale and 32 values of -128 to 127, spread as normal ones of that deviation would be."""
    blocks = np.frombuffer(draw.bytes(count * 34), np.uint8).reshape(count, 34).copy()
    blocks[:, :2] = np.frombuffer(np.float16(spread / 74).tobytes(), np.uint8)
    return blocks


def _written(writer: gguf.GGUFWriter, target: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
