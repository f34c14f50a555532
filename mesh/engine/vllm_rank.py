"""What each host of a vLLM server says of itself: a worker extension, loaded by the server and not by the mesh.

    VLLM_SERVER_DEV_MODE=1 vllm serve ... --worker-extension-cls mesh.engine.vllm_rank.MeshRank

Every worker of the server answers `mesh_rank` through `/collective_rpc`, out of what it runs with and what its own disk
holds. So this imports of the mesh what needs the standard library alone, and of vLLM nothing before it is asked.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mesh.errors import ModelFileError
from mesh.identity.folder import CONFIG, SIDE_CONFIGS, folder_files
from mesh.identity.safetensors import tensor_digests
from mesh.identity.sha256 import sha256_listing

EXTENSION: Final = f"{__name__}.MeshRank"
METHOD: Final = "mesh_rank"

_MISSING: Final = "PPMissingLayer"  # what vLLM puts in the place of a layer that another host computes
_NUMBER = re.compile(r"\.([0-9]+)\Z")


class MeshRank:
    """Mixed into vLLM's worker, whose attributes these are."""

    model_runner: Any
    model_config: Any
    cache_config: Any
    parallel_config: Any
    current_platform: Any
    rank: int

    def mesh_rank(self) -> dict[str, Any]:
        """Everything as text, numbers, lists and maps. Reads every byte of the weights; `fault` in their place says why
        it could not."""
        model, parallel = self.model_runner.model, self.parallel_config
        start, end = layers_computed(model)
        return {
            "host": socket.gethostname(),
            "address": importlib.import_module("vllm.utils.network_utils").get_ip(),
            "kernel": hashlib.sha256(_kernel()).hexdigest()[:16],
            "rank": self.rank,
            "ranks": parallel.world_size,
            "tensor_parallel": parallel.tensor_parallel_size,
            "layers": [start, end],
            "absent": absent_layers(model),
            "architecture": type(model).__name__,
            "device": self.current_platform.device_type,
            "dtype": str(self.model_config.dtype).removeprefix("torch."),
            "cache_dtype": str(self.cache_config.cache_dtype),
            "block_size": str(self.cache_config.block_size),
            "enable_prefix_caching": str(self.cache_config.enable_prefix_caching),
            "version": importlib.import_module("vllm").__version__,
            **_weights(Path(self.model_config.model)),
        }


def layers_computed(model: Any) -> tuple[int, int]:
    """The first layer that a part of a model computes, and the one after the last. Every model that vLLM can split has
    a module that knows."""
    for module in model.modules():
        bounds = getattr(module, "start_layer", None), getattr(module, "end_layer", None)
        if type(bounds[0]) is int and type(bounds[1]) is int:
            return bounds  # type: ignore[return-value]
    return (0, 0)


def absent_layers(model: Any) -> list[int]:
    """The layers that have only a stand-in here."""
    names = [name for name, module in model.named_modules() if type(module).__name__ == _MISSING]
    return sorted(int(found[1]) for found in map(_NUMBER.search, names) if found is not None)


def _weights(folder: Path) -> Mapping[str, Any]:
    try:
        files = folder_files(folder)
        weights = {name: path for name, path in files.items() if name.endswith(".safetensors")}
        configs = {name: files[name] for name in (CONFIG, *SIDE_CONFIGS) if name in files}
        return {
            "files": sha256_listing(weights),
            "configs": sha256_listing(configs),
            "tensors": tensor_digests(weights),
        }
    except (ModelFileError, OSError) as e:
        return {"fault": str(e)}


def _kernel() -> bytes:
    """Tells one running kernel from another, so that two network hosts on one machine are not taken for two."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return socket.gethostname().encode()
