"""Recipes and clusters as tests need them."""

from __future__ import annotations

from pathlib import Path

from mesh.launch.config import LaunchConfig
from mesh.launch.recipe import RecipeFile
from mesh.launch.toml_file import parse_toml, validated

DIGEST = "sha256:" + "a" * 64
COMMIT = "1" * 40

PINNED = f"""
engine = "vllm"
engine_version = "0.32.0"
docker_image = "registry.example/img@{DIGEST}"
model = "org/model"
model_revision = "{COMMIT}"
tensor_parallel_size = 2
required_nodes = 2
args = ["--kv-cache-dtype", "fp8"]
"""

CLUSTERS = """
ssh_user = "u"
ssh_key_path = "/keys/u"
[[clusters]]
name = "2nodes"
nodes = [
  { name = "a", ssh_ip = "10.0.0.1", ib_ip = "200.0.0.1", rank = 0 },
  { name = "b", ssh_ip = "10.0.0.2", ib_ip = "200.0.0.2", rank = 1 },
]
[[clusters]]
name = "4nodes"
master_ib_ip = "200.0.1.9"
nodes = [
  { name = "c", ssh_ip = "10.0.1.1", rank = 0 },
  { name = "d", ssh_ip = "10.0.1.2", rank = 1 },
  { name = "e", ssh_ip = "10.0.1.3", rank = 2 },
  { name = "f", ssh_ip = "10.0.1.4", rank = 3 },
]
[nccl.2nodes]
ib_hca = "roce0,roce1"
socket_ifname = "enp1"
[nccl.4nodes]
ib_disable = 1
[before_serve."*"]
commands = ["nvidia-smi -lgc 0,2000"]
[before_serve.2nodes]
commands = [{ command = "echo two", on_failure = "warn" }, { script = "drop_caches" }]
[mount_aliases]
jit = "/mnt/jit"
"""


def recipe_file(text: str, name: str = "test", root: Path = Path("recipes")) -> RecipeFile:
    return RecipeFile.of(text.encode(), root / name / "recipe.toml")


def clusters(text: str = CLUSTERS) -> LaunchConfig:
    return validated(LaunchConfig, parse_toml(text.encode(), "launch.toml"), "launch.toml")
