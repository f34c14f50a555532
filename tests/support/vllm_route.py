"""A model folder in two halves, and what two hosts that hold them report; those of a real server tests/vllm asks."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesh.identity.folder import folder_files
from mesh.identity.safetensors import tensor_digests
from mesh.identity.sha256 import sha256_listing
from tests.support.tiny_hf import cut_tiny_hf, write_safetensors
from tests.support.vllm_folder import write_model_folder

PARTED = "vllm-0.32.0-pp2-0a1b2c3d"  # what a server calls itself that is split in two
MATRIX = "model.layers.1.mlp.down_proj.weight"


@dataclass(frozen=True)
class Halves:
    whole: Path
    first: Path
    second: Path

    def reports(self) -> list[dict[str, Any]]:
        return [report(self.first, 0, (0, 1)), report(self.second, 1, (1, 2))]


def write_halves(folder: Path, *, off: str | None = None) -> Halves:
    """Two layers, one in each half. The matrix `off` of the second half is not the source's."""
    whole = write_model_folder(folder / "whole")
    names = ["model.embed_tokens.weight", *(f"model.layers.{n}.mlp.down_proj.weight" for n in range(2))]
    tensors = {name: np.full((2, 2), n, np.float32) for n, name in enumerate([*names, "lm_head.weight"])}
    write_safetensors(whole / "model.safetensors", tensors)
    return Halves(
        whole, cut_tiny_hf(whole, folder / "first", 0, 1), cut_tiny_hf(whole, folder / "second", 1, 2, off=off)
    )


def report(part: Path, rank: int, layers: tuple[int, int], **changes: Any) -> dict[str, Any]:
    files = folder_files(part)
    weights = {name: path for name, path in files.items() if name.endswith(".safetensors")}
    told = {
        "host": socket.gethostname(),
        "address": f"10.211.0.{rank + 1}",
        "kernel": "0123456789abcdef",
        "rank": rank,
        "ranks": 2,
        "tensor_parallel": 1,
        "layers": list(layers),
        "absent": [layer for layer in range(2) if not layers[0] <= layer < layers[1]],
        "architecture": "LlamaForCausalLM",
        "device": "cpu",
        "dtype": "float32",
        "cache_dtype": "auto",
        "block_size": "16",
        "enable_prefix_caching": "True",
        "version": "0.32.0",
        "files": sha256_listing(weights),
        "configs": sha256_listing({"config.json": files["config.json"]}),
        "tensors": tensor_digests(weights),
    }
    return {**told, **changes}
