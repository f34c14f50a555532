"""Clusters and the operator's settings: `launch.toml`. Several files make one configuration, and each value's origin
is kept.

ssh_user, ssh_key_path, ssh_silence_s, known_hosts, state_dir, hf_cache_dir, default_port
recipe_sources, cluster_sources    more folders of recipes, more files of clusters; the main file wins
[[clusters]]                       name, master_ib_ip, nodes, extra_entities
[nccl.NAME], [before_serve.NAME]   per cluster; before_serve."*" runs on every one, first
[exec_aliases], [mount_aliases], [registry]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mesh.errors import UsageError
from mesh.launch.recipe import MAX_NODES, Hooks, Text
from mesh.launch.toml_file import Table, parse_toml, read_bounded, validated

DEFAULT_PORT = 30_000
CONFIG_NAME = "launch.toml"
EVERY_CLUSTER = "*"
_FROM_SOURCES = ("ssh_user", "ssh_key_path", "known_hosts")
# Of one lab's hardware: read and listed, and left to plug-ins.
PLUGIN_TABLES = ("home_assistant", "mikrotik")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$")]


class Node(Table):
    """`ssh_ip` is where commands go, `ib_ip` the address on the fast network, by default the same. `gpus` counts its
    accelerators, where somebody said; 0 asks docker for none."""

    name: Name
    ssh_ip: Address
    ssh_port: Annotated[int, Field(ge=1, le=65_535)] = 22
    ib_ip: Address | None = None
    rank: Annotated[int, Field(ge=0, lt=MAX_NODES)]
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    entity: Text | None = None

    @property
    def fabric_ip(self) -> str:
        return self.ib_ip or self.ssh_ip


class Entity(Table):
    entity: Text
    blocks: bool = True


def _entities(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{"entity": one} if isinstance(one, str) else one for one in value]


class Cluster(Table):
    name: Name
    master_ib_ip: Address | None = None
    nodes: Annotated[list[Node], Field(min_length=1, max_length=MAX_NODES)]
    extra_entities: Annotated[list[Entity], BeforeValidator(_entities)] = []

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        ranks = sorted(node.rank for node in self.nodes)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"cluster {self.name}: ranks are {ranks}, expected each of 0 to {len(ranks) - 1} once")
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError(f"cluster {self.name}: two nodes have one name")
        addresses = [(node.ssh_ip, node.ssh_port) for node in self.nodes]
        for node in self.nodes:
            if addresses.count((node.ssh_ip, node.ssh_port)) > 1:
                raise ValueError(f"cluster {self.name}: two nodes are at {node.ssh_ip} port {node.ssh_port}")
        return self

    @property
    def by_rank(self) -> list[Node]:
        return sorted(self.nodes, key=lambda node: node.rank)


class Nccl(Table):
    """`ib_gid_index` left out is found on each node at launch: it moves when a node restarts."""

    ib_hca: Text | None = None
    socket_ifname: Text | None = None
    ib_gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    ib_disable: Annotated[int, Field(ge=0, le=1)] = 0


class Before(Table):
    commands: Hooks = []


class Registry(Table):
    base: Text


class LaunchConfig(Table):
    # also not what a command line of ssh would take for an option
    ssh_user: Annotated[str, Field(pattern=r"^([^\x00-\x20\x7f-][^\x00-\x20\x7f]*)?$", max_length=256)] = ""
    ssh_key_path: str = ""
    ssh_silence_s: Annotated[int, Field(ge=1, le=3600)] = 60  # a node without a word for so long is unreachable
    known_hosts: Text = "known_hosts"  # pinned host keys, beside the file
    state_dir: Text = "launches"
    hf_cache_dir: Text = "~/.cache/huggingface"
    default_port: Annotated[int, Field(ge=1, le=65_535)] = DEFAULT_PORT
    recipe_sources: list[Text] = []
    cluster_sources: list[Text] = []
    clusters: list[Cluster] = []
    nccl: dict[Name, Nccl] = {}
    before_serve: dict[str, Before] = {}
    exec_aliases: dict[Name, Text] = {}
    mount_aliases: dict[Name, Text] = {}
    registry: Registry | None = None
    home_assistant: dict[str, Any] | None = None
    mikrotik: dict[str, Any] | None = None

    @field_validator("clusters")
    @classmethod
    def _one_of_each_name(cls, clusters: list[Cluster]) -> list[Cluster]:
        names = [cluster.name for cluster in clusters]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two clusters are named {name!r}")
        return clusters

    @field_validator("clusters")
    @classmethod
    def _one_node_of_each_name(cls, clusters: list[Cluster]) -> list[Cluster]:
        """A node may be of several clusters, and is the same in each: runs and commands know it by its name."""
        known: dict[str, tuple[str, Node]] = {}
        for cluster in clusters:
            for node in cluster.nodes:
                other, first = known.setdefault(node.name, (cluster.name, node))
                if (node.ssh_ip, node.ssh_port) != (first.ssh_ip, first.ssh_port):
                    raise ValueError(
                        f"two nodes are named {node.name!r}: {first.ssh_ip} port {first.ssh_port} in {other}, "
                        f"{node.ssh_ip} port {node.ssh_port} in {cluster.name}"
                    )
        return clusters

    @model_validator(mode="after")
    def _known_clusters(self) -> Self:
        names = {cluster.name for cluster in self.clusters}
        for table, keys in (("nccl", self.nccl), ("before_serve", self.before_serve)):
            for key in keys:
                if key not in names and not (table == "before_serve" and key == EVERY_CLUSTER):
                    raise ValueError(f"{table}.{key}: no cluster of that name")
        return self

    def hooks_for(self, cluster: str) -> Hooks:
        """Those of every cluster, then its own."""
        tables = [self.before_serve.get(name) for name in (EVERY_CLUSTER, cluster)]
        return [hook for table in tables if table is not None for hook in table.commands]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration in force. `origins` says which file each key came from, "default" where none says it; `files`
    are the bytes of each file read."""

    config: LaunchConfig
    base: Path
    origins: Mapping[str, str]
    files: Mapping[str, bytes]

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, in hex."""
        return {name: sha256(data).hexdigest() for name, data in self.files.items()}

    def path(self, name: str) -> Path:
        """A path that the configuration names, relative to the main file. `~` is left to the node it is of."""
        return self.base / name

    def unused(self, read: Collection[str] = ()) -> list[str]:
        """Keys that are read by plug-ins alone, and by none of those that `read` tables."""
        return [name for name in PLUGIN_TABLES if name not in read and getattr(self.config, name) is not None]


def find_config(given: Path | None, here: Path, user: Path) -> Path | None:
    """`given`, else `launch.toml` in `here`, else the user's. None where there is none; a given one must be there."""
    if given is not None:
        return given
    return next((path for path in (here / CONFIG_NAME, user) if path.is_file()), None)


def load_config(path: Path | None) -> Loaded:
    """The configuration of a file and the cluster sources that it names, or the defaults. Raises UsageError naming the
    file and key at fault, OSError where one cannot be read."""
    if path is None:
        config = LaunchConfig()
        return Loaded(config, Path(), dict.fromkeys(LaunchConfig.model_fields, "default"), {})
    data = read_bounded(path)
    merged, files = parse_toml(data, str(path)), {str(path): data}
    origins = _origins(merged, str(path))
    sources = merged.get("cluster_sources", [])
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        raise UsageError(f"{path}: cluster_sources: expected a list of files")
    for source in sources:
        where = path.parent / source
        files[str(where)] = read_bounded(where)
        _merge(merged, parse_toml(files[str(where)], str(where)), str(where), origins)
    config = validated(LaunchConfig, merged, str(path) if len(files) == 1 else ", ".join(files))
    for key in LaunchConfig.model_fields:
        if key not in merged:
            origins[key] = "default"
    return Loaded(config, path.parent, origins, files)


def _origins(values: Mapping[str, Any], source: str) -> dict[str, str]:
    found = {}
    for key, value in values.items():
        found[key] = source
        if key == "clusters" and isinstance(value, list):
            found |= {f"clusters.{one.get('name')}": source for one in value if isinstance(one, dict)}
        elif key in ("nccl", "before_serve") and isinstance(value, dict):
            found |= {f"{key}.{name}": source for name in value}
    return found


def _merge(merged: dict[str, Any], more: dict[str, Any], source: str, origins: dict[str, str]) -> None:
    """Add what a cluster source says and `merged` does not. Raises UsageError for a key that is no affair of its."""
    for key, value in more.items():
        if key in _FROM_SOURCES:
            if not merged.get(key):
                merged[key], origins[key] = value, source
        elif not isinstance(merged.get(key, value), type(value)):
            continue  # what the main file has there is at fault, and is told when all of it is read
        elif key == "clusters" and isinstance(value, list):
            known = [one.get("name") for one in merged.setdefault(key, []) if isinstance(one, dict)]
            new = [one for one in value if not isinstance(one, dict) or one.get("name") not in known]
            merged[key] = [*merged[key], *new]
            origins.setdefault(key, source)
            origins |= {f"clusters.{one.get('name')}": source for one in new if isinstance(one, dict)}
        elif key in ("nccl", "before_serve") and isinstance(value, dict):
            table = merged.setdefault(key, {})
            origins.setdefault(key, source)
            for name, item in value.items():
                if name not in table:
                    table[name], origins[f"{key}.{name}"] = item, source
        else:
            raise UsageError(
                f"{source}: {key}: not a key of a cluster source, which has clusters, nccl, before_serve, "
                f"{', '.join(_FROM_SOURCES)}"
            )
