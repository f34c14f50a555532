"""What a Hugging Face model folder says about the numbers in it: their type, their width, and the context length."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mesh.engine.hf_files import JsonObject, read_json, shown
from mesh.errors import ModelFileError
from mesh.schema.outcome import Fidelity

CONFIG = "config.json"
MAX_CONTEXT_TOKENS: Final = 2**31 - 1
MAX_BITS: Final = 64
UNNAMED: Final = "unnamed"

_CONTEXT_FIELDS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
MAX_LAYERS: Final = 65_536
_LAYER_FIELDS: Final = ("num_hidden_layers", "n_layer", "num_layers")
_ARCHITECTURE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ALIASES: Final = {"half": "float16", "float": "float32", "double": "float64"}
# Which types hold every value of a published one. bfloat16 has float32's range at 8 bits, float16 has 11 bits at less
# range: neither holds the other.
_HOLDS: Final = {
    "float16": ("float16", "float32", "float64"),
    "bfloat16": ("bfloat16", "float32", "float64"),
    "float32": ("float32", "float64"),
    "float64": ("float64",),
}
_FP8: Final = ("fp8", "fbgemm_fp8")
# Servers look here too where config.json has no section, each method for its own file.
_SIDE_SECTIONS: Final = (
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
)
_METHOD = re.compile(r"[A-Za-z0-9._+-]{1,48}")


@dataclass(frozen=True, slots=True)
class HfModel:
    """`context_tokens` is what the model was made for, before a server stretches or cuts it. `dtype` is the published
    type of the weights, or of what is computed with them where they are quantized. `quantization` is the name of the
    method, None where the weights are not quantized; `bits_per_weight` the width of the narrowest quantized weights
    (their scales not counted), None where it could not be read. `architecture` and `adapter` are what the config calls
    its kind of model and the class that runs it, `layer_count` how many layers that has; None where it does not say."""

    context_tokens: int | None
    dtype: str | None
    quantization: str | None
    bits_per_weight: int | None
    architecture: str | None = None
    adapter: str | None = None
    layer_count: int | None = None

    def fidelity(self, dtype: str | None) -> Fidelity:
        """The rating when these files are served in `dtype`, a name (`auto` is none). F3 is for published values: in a
        type that holds them all, and with no quantization, not even the publisher's. It says nothing of a quantization
        that a server makes by itself while it loads."""
        if self.quantization is not None:
            if self.bits_per_weight is None:
                return Fidelity.F0
            return Fidelity.of_bits_per_weight(self.bits_per_weight)
        return Fidelity.F3 if _canonical(dtype) in _HOLDS.get(self.dtype or "", ()) else Fidelity.F0

    def precision(self, dtype: str | None) -> str | None:
        """A label of how the weights are kept: `gptq-4bit`, or the type they are served in; None where that is
        unknown."""
        if self.quantization is not None:
            return self.quantization + (f"-{self.bits_per_weight}bit" if self.bits_per_weight else "")
        served = _canonical(dtype)
        return served if served in _HOLDS else None


def read_hf_model(folder: Path) -> HfModel:
    """Raises ModelFileError naming the field of config.json."""
    config = read_json(folder, CONFIG)
    if config is None:
        raise ModelFileError(f"{folder.name}: no {CONFIG} in this folder")
    inner = config.section("text_config")
    levels = [config] if inner is None else [config, inner]
    method, bits = _quantization(levels)
    if method is None and any(os.path.lexists(folder / name) for name in _SIDE_SECTIONS):
        method = UNNAMED
    return HfModel(
        _context(levels),
        _dtype(levels),
        method,
        bits,
        _name(config.text("model_type")),
        _adapter(config),
        _layers(levels),
    )


def _adapter(config: JsonObject) -> str | None:
    classes = config.array("architectures") or []
    return _name(classes[0]) if classes and isinstance(classes[0], str) else None


def _name(text: str | None) -> str | None:
    return text if text is not None and _ARCHITECTURE.fullmatch(text) else None


def _layers(levels: list[JsonObject]) -> int | None:
    for level in levels:
        for name in _LAYER_FIELDS:
            count = level.integer(name, minimum=1, maximum=MAX_LAYERS)
            if count is not None:
                return count
    return None


def _context(levels: list[JsonObject]) -> int | None:
    for level in levels:
        for name in _CONTEXT_FIELDS:
            tokens = level.integer(name, minimum=1, maximum=MAX_CONTEXT_TOKENS)
            if tokens is not None:
                return tokens
    return None


def _dtype(levels: list[JsonObject]) -> str | None:
    for level in levels:
        new, old = level.text("dtype"), level.text("torch_dtype")
        if new is not None and old is not None and _canonical(new) != _canonical(old):
            raise level.fault("dtype", f"{shown(new, 24)}, but torch_dtype is {shown(old, 24)}")
        if new is not None or old is not None:
            return _canonical(new if new is not None else old)
    return None


def _canonical(dtype: str | None) -> str | None:
    name = None if dtype is None else dtype.removeprefix("torch.")
    return None if name is None else _ALIASES.get(name, name)


def _quantization(levels: list[JsonObject]) -> tuple[str | None, int | None]:
    """The method's name and its bits."""
    for level in levels:
        for key in ("quantization_config", "compression_config"):
            section = level.section(key)
            if section is None:
                continue
            method = section.text("quant_method")
            if method is None:
                method = "compressed-tensors" if section.values.get("config_groups") else UNNAMED
            if not _METHOD.fullmatch(method):
                raise section.fault("quant_method", f"{shown(method, 48)!r}, expected the name of a method")
            return method, min(_bits(section, method), default=None)
    return None, None


def _bits(section: JsonObject, method: str) -> Iterator[int]:
    """The widths that a section names. More than one: layers differ, and the narrowest counts."""
    if method in ("gptq", "awq"):
        yield from _named_bits(section, "bits")
        if method == "awq":
            yield from _named_bits(section, "w_bit")
        for rule in _inner(section, "dynamic"):  # by the names of layers; without bits they are left as they were
            yield from _named_bits(rule, "bits")
    elif method == "bitsandbytes":
        if section.flag("load_in_8bit") or section.flag("_load_in_8bit"):
            yield 8
        if section.flag("load_in_4bit") or section.flag("_load_in_4bit"):
            yield 4
    elif method == "compressed-tensors":
        for group in _inner(section, "config_groups"):
            weights = group.section("weights")
            if weights is not None:
                yield from _named_bits(weights, "num_bits")
    elif method in _FP8:
        yield 8


def _inner(section: JsonObject, key: str) -> Iterator[JsonObject]:
    """The objects in the object at `key`."""
    outer = section.section(key)
    if outer is not None:
        for name, value in outer.values.items():
            if value is not None:
                yield outer.within(name, value)


def _named_bits(section: JsonObject, key: str) -> Iterator[int]:
    bits = section.integer(key, minimum=1, maximum=MAX_BITS)
    if bits is not None:
        yield bits
