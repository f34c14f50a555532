"""A vLLM server that computes one model over several hosts: what each of them reports, held against the whole model.

A server of which one host leaves a layer out, or has other weights, answers as any other, and wrongly. So before it
serves, every host says what it computes and what its disk holds, and each tensor is compared with the source's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from mesh.engine.vllm_described import VllmConfig
from mesh.engine.vllm_http import VllmServer
from mesh.engine.vllm_identity import WeightsFolder, cache_axes
from mesh.engine.vllm_rank import METHOD
from mesh.errors import EngineUnsupported, LayerError, RouteIncompatible, SchemaError
from mesh.identity.artifact import DerivativeBinding
from mesh.identity.derived import listed_digest, pinned
from mesh.identity.mismatch import ARTIFACT, RANGE, Mismatch, listed
from mesh.identity.safetensors import layer_of, layers_of
from mesh.identity.shard import ShardIdentity
from mesh.identity.shard_route import MAX_SHARDS, ShardRoute
from mesh.schema.value import Name, fits

_HEX64: Final = 64
_MOST_SHOWN: Final = 3  # tensors named in one reason


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's answer to `mesh_rank`. `layers` are those that it computes, `absent` those that it has a stand-in for;
    `tensors` the digest of each that its folder holds, `files` and `configs` listings of it."""

    address: str
    kernel: str
    rank: int
    ranks: int
    tensor_parallel: int
    layers: tuple[int, int]
    absent: frozenset[int]
    architecture: str
    device: str
    dtype: str
    cache: Mapping[str, str]
    version: str
    files: Sequence[Sequence[str]]
    configs: Sequence[Sequence[str]]
    tensors: Mapping[str, str]

    @classmethod
    def of(cls, told: object) -> Self:
        """Raises EngineUnsupported for what is no report, or says that its weights cannot be read."""
        fields = told if isinstance(told, dict) else {}
        if isinstance(fields.get("fault"), str):
            rank = fields["rank"] if type(fields.get("rank")) is int else "?"
            raise EngineUnsupported(f"vllm rank {rank}: its model folder: {_plain(fields['fault'][:200])}")
        words = ("address", "kernel", "architecture", "device", "dtype", "version")
        cache = ("cache_dtype", "block_size", "enable_prefix_caching")
        numbers = ("rank", "ranks", "tensor_parallel")
        sound = (
            all(fits(fields.get(name), Name) for name in (*words, *cache))
            and all(type(fields.get(name)) is int for name in numbers)
            and _integers(fields.get("layers"), 2)
            and _integers(fields.get("absent"))
            and _listing(fields.get("files"))
            and _listing(fields.get("configs"))
            and isinstance(fields.get("tensors"), dict)
            and all(_hex64(digest) for digest in fields["tensors"].values())
        )
        if not sound:
            raise EngineUnsupported("vllm server: /collective_rpc gave no report of a rank: its extension is another")
        return cls(
            **{name: fields[name] for name in (*words, *numbers, "files", "configs", "tensors")},
            layers=tuple(fields["layers"]),
            absent=frozenset(fields["absent"]),
            cache={name: fields[name] for name in cache},
        )


async def look(
    server: VllmServer, config: VllmConfig, folder: WeightsFolder | None, whole: ShardIdentity
) -> ShardRoute:
    """Ask the hosts what they compute and hold now; `folder` is that of the model that is `whole`. Raises as
    `read_route` does."""
    assert folder is not None  # what is whole was read off it
    told = await server.ranks(METHOD, patience_s=config.start_s)
    return await asyncio.to_thread(read_route, told, whole, folder, folder.tensors)


def read_route(
    told: Sequence[object], whole: ShardIdentity, source: WeightsFolder, tensors: Callable[[], Mapping[str, str]]
) -> ShardRoute:
    """The route of a server whose ranks answered `told`, for the model that `whole` is; `source` is that model's folder
    and `tensors` gives the digests of what it holds. Raises EngineUnsupported for answers that cannot be used, and
    RouteIncompatible with every reason why this may not be used."""
    reports = sorted(map(RankReport.of, told), key=lambda report: (report.layers, report.rank))
    if len(reports) > MAX_SHARDS:
        raise EngineUnsupported(
            f"vllm server: {len(reports)} ranks, expected at most {MAX_SHARDS} for a route of shards"
        )
    split = max((report.tensor_parallel for report in reports), default=1)
    if split != 1:
        raise EngineUnsupported(f"vllm server: it splits tensors {split} ways: a route of shards is split by layers")
    found: list[Mismatch] = []
    shards: list[ShardIdentity] = []
    for index, report in enumerate(reports):
        try:
            shards.append(_shard(report, reports[0], whole, source))
        except (LayerError, SchemaError) as e:
            found.append(Mismatch(RANGE, "layers", str(e), index))
            continue
        found += _weights(report, shards[-1], tensors, index)
    nodes = tuple(report.address for report in reports)
    route = ShardRoute(tuple(shards), nodes, tuple(report.kernel for report in reports))
    if len(shards) == len(reports):
        found += route.mismatches(whole)
        found += _held_by_nobody(reports, shards, tensors)
    if found:
        raise RouteIncompatible(f"route: {listed(found)}", reasons=[one.to_map() for one in found])
    return route


def _shard(report: RankReport, first: RankReport, whole: ShardIdentity, source: WeightsFolder) -> ShardIdentity:
    """Raises LayerError for layers that the host's weights cannot give."""
    content = listed_digest(report.files)
    binding = None
    if content != source.content:
        held = layers_of(report.tensors)
        if held is None:
            raise LayerError(f"{report.address}: its folder holds no layer")
        binding = DerivativeBinding(source.content, *held)
    artifact = replace(
        whole.artifact, content_digest=content, revision=pinned(content), derived_from=binding,
        architecture_digest=listed_digest(report.configs),
    )  # fmt: skip
    _, space, split = whole.recipe.backend_id.partition(" ")
    same_code = report.architecture == first.architecture
    kv_dtype, kv_layout = cache_axes(report.cache, report.dtype)
    recipe = replace(
        whole.recipe, activation_dtype=report.dtype, compute_dtype=report.dtype, kv_dtype=kv_dtype, kv_layout=kv_layout,
        runtime_version=f"vllm/{report.version}", backend_id=f"vllm/{report.device}{space}{split}",
        architecture_adapter=whole.recipe.architecture_adapter if same_code else f"vllm/{report.architecture}",
    )  # fmt: skip
    computed = range(*report.layers)
    if stand_ins := [layer for layer in report.absent if layer in computed]:
        raise LayerError(f"{report.address}: has a stand-in for layer {min(stand_ins)}, which it is to compute")
    return ShardIdentity(artifact, recipe, *report.layers)


def _weights(
    report: RankReport, shard: ShardIdentity, tensors: Callable[[], Mapping[str, str]], index: int
) -> list[Mismatch]:
    """What a cut holds otherwise than its source, or lacks of the layers that it computes."""
    if shard.artifact.derived_from is None:
        return []
    source = tensors()
    others = sorted(name for name, digest in report.tensors.items() if source.get(name) != digest)
    computed = range(shard.shard_start, shard.shard_end)
    lacking = sorted(name for name in source if layer_of(name) in computed and name not in report.tensors)
    out = []
    if others:
        out.append(Mismatch(ARTIFACT, "tensors", f"{_named(others)}: not the source's", index))
    if lacking:
        out.append(Mismatch(ARTIFACT, "tensors", f"{_named(lacking)}: missing, expected the source's", index))
    return out


def _held_by_nobody(
    reports: Sequence[RankReport], shards: Sequence[ShardIdentity], tensors: Callable[[], Mapping[str, str]]
) -> list[Mismatch]:
    """What is of no layer, as the embedding is, has to be somewhere."""
    if not shards or any(shard.artifact.derived_from is None for shard in shards):
        return []
    held = {name for report in reports for name in report.tensors}
    lost = sorted(name for name in tensors() if layer_of(name) is None and name not in held)
    return [Mismatch(ARTIFACT, "tensors", f"{_named(lost)}: on no host")] if lost else []


def _plain(text: str) -> str:
    """Nothing that a terminal would obey."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(ascii(name[:80])[1:-1] for name in names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _integers(value: object, count: int | None = None) -> bool:
    return (
        isinstance(value, list)
        and all(type(item) is int and item >= 0 for item in value)
        and count in (None, len(value))
    )


def _listing(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(entry, list) and len(entry) == 2 for entry in value)
        and all(fits(name, Name) and _hex64(digest) for name, digest in value)
    )


def _hex64(value: object) -> bool:
    return isinstance(value, str) and len(value) == _HEX64 and set(value) <= set("0123456789abcdef")
