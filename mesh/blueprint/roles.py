"""What each tensor of a checkpoint is to the circuit, told from its name: as GGUF files name them, and as the folders
of Hugging Face do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mesh.blueprint.circuit import Weight
from mesh.errors import BodyError

# Roles of tensors outside the layers, and in a layer. `_exps` and `_shexp` are experts and the ones shared by all.
OUTER: Final = ("embedding", "positions", "embedding_norm", "output_norm", "head", "rope")
INNER: Final = (
    "attn_norm", "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
    "post_attn_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffn_norm", "router",
    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
    "shared_router",
)  # fmt: skip

_GGUF_OUTER: Final = {
    "token_embd": "embedding", "position_embd": "positions", "token_embd_norm": "embedding_norm",
    "output_norm": "output_norm", "output": "head", "rope_freqs": "rope", "rope_factors_long": "rope",
    "rope_factors_short": "rope",
}  # fmt: skip
_GGUF_INNER: Final = {
    **{role: role for role in INNER},
    "post_attention_norm": "post_attn_norm", "post_ffw_norm": "post_ffn_norm", "attn_norm_2": "ffn_norm",
    "ffn_gate_inp": "router", "ffn_gate_inp_shexp": "shared_router", "exp_probs_b": "router",
}  # fmt: skip
_GGUF: Final = re.compile(r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<part>[a-z0-9_]+?)(?:\.(?P<what>weight|bias|scale))?\Z")

_HF_OUTER: Final = {
    "model.embed_tokens": "embedding", "transformer.wte": "embedding", "wte": "embedding",
    "transformer.wpe": "positions", "wpe": "positions", "model.norm": "output_norm", "transformer.ln_f": "output_norm",
    "ln_f": "output_norm", "lm_head": "head", "model.language_model.embed_tokens": "embedding",
    "model.language_model.norm": "output_norm",
}  # fmt: skip
_HF_INNER: Final = {
    "input_layernorm": "attn_norm", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "mlp.gate": "router", "mlp.router": "router", "block_sparse_moe.gate": "router",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "shared_router",
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_HF_EXPERT: Final = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.\d{1,4}\.(gate_proj|up_proj|down_proj|w1|w2|w3)\Z")
_EXPERTS: Final = {
    "gate_proj": "ffn_gate_exps", "w1": "ffn_gate_exps", "up_proj": "ffn_up_exps", "w3": "ffn_up_exps",
    "down_proj": "ffn_down_exps", "w2": "ffn_down_exps",
}  # fmt: skip
# How a tensor of a part is told from its other ones; quantized ones come in several.
_HF_WHATS: Final = (
    "weight", "bias", "scale", "weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point", "weight_packed",
    "weight_shape", "qweight", "qzeros", "scales", "g_idx", "weight_global_scale", "input_global_scale",
)  # fmt: skip
_HF_LAYER: Final = re.compile(r"(?:.*\.)?(?:layers|h)\.(?P<layer>\d{1,5})\.(?P<part>.+)\Z")


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor with its place: `layer` counts from 0, None outside them. `inputs` and `outputs` are elements a row, of
    a matrix; a vector has `outputs` alone."""

    weight: int
    role: str
    layer: int | None
    bias: bool
    inputs: int
    outputs: int


def placed_gguf(number: int, weight: Weight, architecture: str) -> Placed:
    """`weight` is entry `number` of the circuit. Raises BodyError for a tensor whose place is not known."""
    match = _GGUF.match(weight.name)
    layer = None if match is None or match["layer"] is None else int(match["layer"])
    part = "" if match is None else match["part"]
    if part == "rope_freqs":  # some files repeat it in every layer
        layer = None
    role = (_GGUF_OUTER if layer is None else _GGUF_INNER).get(part)
    if role is None or match is None:
        raise _unknown(weight, architecture)
    # the row comes first; experts lie behind one another
    inputs = weight.shape[0] if len(weight.shape) > 1 else 0
    outputs = weight.shape[1] if len(weight.shape) > 1 else weight.shape[0] if weight.shape else 1
    return Placed(number, role, layer, match["what"] == "bias" or part == "exp_probs_b", inputs, outputs)


def placed_hf(number: int, weight: Weight, architecture: str, *, post_norms: bool) -> Placed:
    """As `placed_gguf`. With `post_norms` the norm behind the attention is not the one before the next part, which has
    its own."""
    part, _, what = weight.name.rpartition(".")
    if what not in _HF_WHATS:
        raise _unknown(weight, architecture)
    match = _HF_LAYER.match(part)
    layer = None if match is None else int(match["layer"])
    inner = part if match is None else match["part"]
    expert = _HF_EXPERT.match(inner)
    if expert is not None:
        role: str | None = _EXPERTS[expert[1]]
    else:
        role = (_HF_OUTER if layer is None else _HF_INNER).get(inner)
    if post_norms and inner == "post_attention_layernorm":
        role = "post_attn_norm"
    if role is None:
        raise _unknown(weight, architecture)
    matrix = len(weight.shape) > 1
    inputs, outputs = (weight.shape[-1] if matrix else 0), (weight.shape[-2] if matrix else (*weight.shape, 1)[0])
    if inner.rpartition(".")[2] in ("c_attn", "c_proj", "c_fc"):  # these are kept the other way round
        inputs, outputs = outputs, inputs
    return Placed(number, role, layer, what == "bias", inputs, outputs)


def _unknown(weight: Weight, architecture: str) -> BodyError:
    return BodyError(f"circuit: tensor {weight.name[:80]!r} of {architecture}: its place in a circuit is not known")
