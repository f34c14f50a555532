"""Identities to be changed in one place."""

from __future__ import annotations

import copy
from typing import Any

from mesh.identity.evidence import ForwardEvidence
from mesh.identity.shard import ShardIdentity

Map = dict[str, Any]

WHOLE, OTHER, CUT = "aa" * 32, "bb" * 32, "cc" * 32
CONFIG = "dd" * 32

AXES: Map = {
    "weight_quantization": "Q4_1",
    "activation_dtype": "bf16",
    "compute_dtype": "f32",
    "kv_dtype": "q8_0",
    "kv_layout": "contiguous",
    "tokenizer_revision": "sha256:0001",
    "architecture_adapter": "llama.cpp/llama",
    "backend_id": "llama.cpp/x86_64-avx2/cpu",
    "runtime_version": "0.1.5",
    "boundary_schema_version": 2,
    "protocol_schema_version": 3,
}
LABELS: Map = {"recipe_id": "small", "recipe_version": "7", "catalogue_version": "2026-09"}


def block(**changes: Any) -> Map:
    """The JSON form of a whole model of 4 layers. `a__b` is a field of a field; None takes it out."""
    value: Map = {
        "schema_version": 1,
        "artifact": {
            "artifact_id": "someone/small",
            "revision": "sha256:0002",
            "content_digest": WHOLE,
            "architecture": "llama",
            "architecture_digest": CONFIG,
            "layer_count": 4,
        },
        "recipe": {**AXES, **LABELS},
        "shard_start": 0,
        "shard_end": 4,
    }
    for path, change in changes.items():
        *outer, last = path.split("__")
        inner = value
        for name in outer:
            inner = inner[name]
        if change is None:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(change)
    return value


def identity(**changes: Any) -> ShardIdentity:
    return ShardIdentity.from_map(block(**changes))


def binding(start: int, end: int, source: str = WHOLE) -> Map:
    return {"source_artifact_digest": source, "shard_start": start, "shard_end": end}


def cut(start: int, end: int, **changes: Any) -> ShardIdentity:
    """A host that holds and computes these layers of the whole."""
    held = {"artifact__content_digest": CUT, "artifact__derived_from": binding(start, end)}
    return identity(**{**held, "shard_start": start, "shard_end": end, **changes})


def evidence(**changes: Any) -> ForwardEvidence:
    fields: Map = {
        "route_session_id": "session-1",
        "route_epoch": 0,
        "node_ids": ("near", "far"),
        "shard_ranges": ((0, 2), (2, 4)),
        "tokens_generated": 1,
        "layer_count": 4,
        "certified_at_ns": 1_790_000_000_000_000_000,
    }
    return ForwardEvidence(**{**fields, **changes})
