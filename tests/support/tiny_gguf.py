"""Writes a llama model of random weights small enough for any test: 4 layers, 128 wide, about 0.7 MB as Q8_0.

Its greedy output varies (over a hundred distinct tokens in two hundred), so a test on it can tell a right answer from
a wrong one. Vocabulary: the three ChatML specials, one token for each byte and a handful of merges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# As real templates do it whose model was trained without a system role.
CHATML_WITHOUT_SYSTEM = (
    "{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHATML
)

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(3)
FIRST_BYTE_TOKEN = len(SPECIALS)  # the token of byte b is FIRST_BYTE_TOKEN + b
MERGES = (("Ġ", "a"), ("e", "r"), ("o", "n"), ("Ġa", "n"), ("Ġan", "d"))

WIDTH, INNER, HEADS, KV_HEADS = 128, 256, 4, 2
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3


def byte_symbols() -> list[str]:
    """The character that byte-level BPE shows each byte as: itself if printable, else the next from U+0100."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(spare)) for byte in range(256)]


def vocabulary() -> list[str]:
    return [*SPECIALS, *byte_symbols(), *("".join(pair) for pair in MERGES)]


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 1,
    quant: str = "q8_0",
    template: str | None = CHATML,
    pre: str | None = "smollm",
    eos: int | None = IM_END,
    bos: int | None = IM_START,
    add_bos: bool | None = False,
    name: str = "tiny-random-llama",
    context: int = 2048,
    layers: int = 4,
    shards: int | None = None,
    twins: tuple[int, int] | None = None,
) -> Path:
    """Write the model and return the file to load: `path`, or with `shards` the first of
    `<stem>-00001-of-<shards>.gguf` beside it.

    `quant` is f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 or q8_0 and holds for every matrix; norms stay f32. None for
    `template`, `pre`, `eos`, `bos` or `add_bos` leaves the field out. One seed gives one file, byte for byte.
    `twins` are two ids of which the second gets the first's output row, so that their logits are always equal.
    """
    matrices, norms = _weights(seed, layers)
    if twins is not None:
        rows = matrices["output.weight"]
        rows[twins[1]] = rows[twins[0]]
    split = 0 if shards is None else -(-(len(matrices) + len(norms)) // shards)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    tokens = vocabulary()
    writer.add_name(name)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL_TOKEN] * len(SPECIALS) + [_NORMAL_TOKEN] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    if bos is not None:
        writer.add_bos_token_id(bos)
    if eos is not None:
        writer.add_eos_token_id(eos)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if template is not None:
        writer.add_chat_template(template)

    kind = gguf.GGMLQuantizationType[quant.upper()]
    for label, values in matrices.items():
        writer.add_tensor(label, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for label, values in norms.items():
        writer.add_tensor(label, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if shards is None:
        return path
    first = path.with_name(f"{path.stem}-00001-of-{shards:05d}.gguf")
    if not first.exists():
        raise ValueError(f"{len(matrices) + len(norms)} tensors do not divide into {shards} shards of equal length")
    return first


def _weights(seed: int, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Matrices and norms by tensor name, all float32."""
    draw = np.random.default_rng(seed)
    kv = WIDTH * KV_HEADS // HEADS
    spread = 2 * WIDTH**-0.5  # wide enough that attention and feed-forward change the argmax
    shapes: dict[str, tuple[int, int, float]] = {
        "token_embd.weight": (len(vocabulary()), WIDTH, 1.0),
        "output.weight": (len(vocabulary()), WIDTH, 0.3),
    }
    norms = {"output_norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(layers):
        block = f"blk.{layer}"
        norms[f"{block}.attn_norm.weight"] = np.ones(WIDTH, np.float32)
        norms[f"{block}.ffn_norm.weight"] = np.ones(WIDTH, np.float32)
        shapes[f"{block}.attn_q.weight"] = (WIDTH, WIDTH, spread)
        shapes[f"{block}.attn_k.weight"] = (kv, WIDTH, spread)
        shapes[f"{block}.attn_v.weight"] = (kv, WIDTH, spread)
        shapes[f"{block}.attn_output.weight"] = (WIDTH, WIDTH, spread)
        shapes[f"{block}.ffn_gate.weight"] = (INNER, WIDTH, spread)
        shapes[f"{block}.ffn_up.weight"] = (INNER, WIDTH, spread)
        shapes[f"{block}.ffn_down.weight"] = (WIDTH, INNER, spread)
    matrices = {
        label: (draw.standard_normal((rows, columns)) * scale).astype(np.float32)
        for label, (rows, columns, scale) in shapes.items()
    }
    return matrices, norms
