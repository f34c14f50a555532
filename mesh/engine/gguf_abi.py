"""The C interface of llama.cpp b11549 as the pinned xllamacpp wheel ships it: structures, functions, and a check.

Structures change between builds and C says nothing when they do, so before anything is loaded the defaults that the
library itself returns are compared, field by field, with those of the build this file was written for.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any, Final

from mesh.errors import EngineUnsupported

WHEEL_VERSION: Final = "2026.10.11549"

FLASH_ATTN_DISABLED, FLASH_ATTN_ENABLED = 0, 1
KV_TYPES: Final = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}
OVERRIDE_INT, OVERRIDE_STR = 0, 3
DECODE_OK, DECODE_NO_SLOT = 0, 1

_Pointer, _Bool, _I32, _U32, _Float = c.c_void_p, c.c_bool, c.c_int32, c.c_uint32, c.c_float


class ModelParams(c.Structure):
    _fields_ = (
        ("devices", _Pointer), ("tensor_buft_overrides", _Pointer), ("n_gpu_layers", _I32), ("split_mode", _I32),
        ("load_mode", _I32), ("lazy_mode", _I32), ("main_gpu", _I32), ("tensor_split", _Pointer),
        ("progress_callback", _Pointer), ("progress_callback_user_data", _Pointer), ("kv_overrides", _Pointer),
        ("vocab_only", _Bool), ("check_tensors", _Bool), ("use_extra_bufts", _Bool), ("no_host", _Bool),
        ("no_alloc", _Bool), ("load_mtp", _Bool),
    )  # fmt: skip


class ContextParams(c.Structure):
    _fields_ = (
        ("n_ctx", _U32), ("n_batch", _U32), ("n_ubatch", _U32), ("n_seq_max", _U32), ("n_rs_seq", _U32),
        ("n_outputs_max", _U32), ("n_outputs_max_per_seq", _U32), ("n_threads", _I32), ("n_threads_batch", _I32),
        ("ctx_type", _I32), ("rope_scaling_type", _I32), ("pooling_type", _I32), ("attention_type", _I32),
        ("flash_attn_type", _I32), ("rope_freq_base", _Float), ("rope_freq_scale", _Float),
        ("yarn_ext_factor", _Float), ("yarn_attn_factor", _Float), ("yarn_beta_fast", _Float),
        ("yarn_beta_slow", _Float), ("yarn_orig_ctx", _U32), ("defrag_thold", _Float), ("cb_eval", _Pointer),
        ("cb_eval_user_data", _Pointer), ("type_k", _I32), ("type_v", _I32), ("moe_cache_size", c.c_size_t),
        ("abort_callback", _Pointer), ("abort_callback_data", _Pointer), ("embeddings", _Bool),
        ("offload_kqv", _Bool), ("no_perf", _Bool), ("op_offload", _Bool), ("swa_full", _Bool),
        ("kv_unified", _Bool), ("samplers", _Pointer), ("n_samplers", c.c_size_t), ("ctx_other", _Pointer),
    )  # fmt: skip


class Batch(c.Structure):
    _fields_ = (
        ("n_tokens", _I32), ("token", _Pointer), ("embd", _Pointer), ("pos", _Pointer), ("n_seq_id", _Pointer),
        ("seq_id", _Pointer), ("logits", _Pointer),
    )  # fmt: skip


class SamplerChainParams(c.Structure):
    _fields_ = (("no_perf", _Bool),)


class LogitBias(c.Structure):
    _fields_ = (("token", _I32), ("bias", _Float))


class _OverrideValue(c.Union):
    _fields_ = (("as_int", c.c_int64), ("as_float", c.c_double), ("as_bool", _Bool), ("as_str", c.c_char * 128))


class KvOverride(c.Structure):
    """One metadata field given a value the file does not have; a list of them ends with an empty key."""

    _fields_ = (("tag", _I32), ("key", c.c_char * 128), ("value", _OverrideValue))


SIZES: Final = {"llama_model_params": (ModelParams, 80), "llama_context_params": (ContextParams, 168)}

# What the library of that build returns; every field is listed, pointers as None.
MODEL_DEFAULTS: Final[dict[str, Any]] = {name: None for name, kind in ModelParams._fields_ if kind is _Pointer} | {
    "n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "main_gpu": 0, "vocab_only": False,
    "check_tensors": False, "use_extra_bufts": True, "no_host": False, "no_alloc": False, "load_mtp": False,
}  # fmt: skip
CONTEXT_DEFAULTS: Final[dict[str, Any]] = {name: None for name, kind in ContextParams._fields_ if kind is _Pointer} | {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0, "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4, "ctx_type": 0, "rope_scaling_type": -1,
    "pooling_type": -1, "attention_type": -1, "flash_attn_type": -1, "rope_freq_base": 0.0, "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0, "yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0, "defrag_thold": -1.0, "type_k": 1, "type_v": 1, "moe_cache_size": 0, "embeddings": False,
    "offload_kqv": True, "no_perf": True, "op_offload": True, "swa_full": True, "kv_unified": False, "n_samplers": 0,
}  # fmt: skip

# name: (result, arguments)
FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_backend_init": (None, ()),
    "llama_model_load_from_file": (_Pointer, (c.c_char_p, ModelParams)),
    "llama_model_free": (None, (_Pointer,)),
    "llama_model_get_vocab": (_Pointer, (_Pointer,)),
    "llama_model_n_ctx_train": (_I32, (_Pointer,)),
    "llama_init_from_model": (_Pointer, (_Pointer, ContextParams)),
    "llama_free": (None, (_Pointer,)),
    "llama_n_ctx_seq": (_U32, (_Pointer,)),
    "llama_get_memory": (_Pointer, (_Pointer,)),
    "llama_memory_clear": (None, (_Pointer, _Bool)),
    "llama_memory_seq_cp": (None, (_Pointer, _I32, _I32, _I32, _I32)),
    "llama_memory_seq_rm": (_Bool, (_Pointer, _I32, _I32, _I32)),
    "llama_decode": (_I32, (_Pointer, Batch)),
    "llama_get_logits_ith": (_Pointer, (_Pointer, _I32)),
    "llama_vocab_n_tokens": (_I32, (_Pointer,)),
    "llama_vocab_is_eog": (_Bool, (_Pointer, _I32)),
    "llama_vocab_bos": (_I32, (_Pointer,)),
    "llama_vocab_eos": (_I32, (_Pointer,)),
    "llama_vocab_get_add_bos": (_Bool, (_Pointer,)),
    "llama_tokenize": (_I32, (_Pointer, c.c_char_p, _I32, _Pointer, _I32, _Bool, _Bool)),
    "llama_token_to_piece": (_I32, (_Pointer, _I32, c.c_char_p, _I32, _I32, _Bool)),
    "llama_sampler_chain_default_params": (SamplerChainParams, ()),
    "llama_sampler_chain_init": (_Pointer, (SamplerChainParams,)),
    "llama_sampler_chain_add": (None, (_Pointer, _Pointer)),
    "llama_sampler_init_greedy": (_Pointer, ()),
    "llama_sampler_init_dist": (_Pointer, (_U32,)),
    "llama_sampler_init_top_k": (_Pointer, (_I32,)),
    "llama_sampler_init_top_p": (_Pointer, (_Float, c.c_size_t)),
    "llama_sampler_init_min_p": (_Pointer, (_Float, c.c_size_t)),
    "llama_sampler_init_temp": (_Pointer, (_Float,)),
    "llama_sampler_init_penalties": (_Pointer, (_I32, _I32, _Float, _Float, _Float)),
    "llama_sampler_init_logit_bias": (_Pointer, (_I32, _I32, _Pointer)),
    "llama_sampler_init_grammar": (_Pointer, (_Pointer, c.c_char_p, c.c_char_p)),
    "llama_sampler_sample": (_I32, (_Pointer, _Pointer, _I32)),
    "llama_sampler_accept": (None, (_Pointer, _I32)),
    "llama_sampler_free": (None, (_Pointer,)),
}


def open_library(path: Path) -> c.CDLL:
    """The library with every function of `FUNCTIONS` declared, checked. Raises EngineUnsupported."""
    try:
        library = c.CDLL(str(path))
    except OSError as e:
        raise EngineUnsupported(f"llama library: cannot be opened: {e}") from None
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise EngineUnsupported(f"llama library: no function {name}, expected xllamacpp {WHEEL_VERSION}") from None
        function.restype, function.argtypes = result, arguments
    check_abi(library.llama_model_default_params(), library.llama_context_default_params())
    return library


def check_abi(model: ModelParams, context: ContextParams) -> None:
    """Compare what the library returned with what its build is known to return. Raises EngineUnsupported naming the
    first field that differs."""
    for name, (structure, size) in SIZES.items():
        if c.sizeof(structure) != size:
            raise EngineUnsupported(f"llama library: {name} is {c.sizeof(structure)} bytes here, expected {size}")
    for name, got, expected in (
        ("llama_model_params", model, MODEL_DEFAULTS),
        ("llama_context_params", context, CONTEXT_DEFAULTS),
    ):
        for field, value in expected.items():
            if getattr(got, field) != value:
                raise EngineUnsupported(
                    f"llama library: default {name}.{field} is {getattr(got, field)!r}, expected {value!r}: not the"
                    f" build of xllamacpp {WHEEL_VERSION}, whose structures this engine knows"
                )
