"""Identities as JSON, put together by hand, and what they commit to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from conformance.material import STARTED_NS, Map, changed

A, B, C, CONFIG = "aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32

AXES: Map = {
    "weight_quantization": "Q4_1",
    "activation_dtype": "f32",
    "compute_dtype": "f16",
    "kv_dtype": "q8_0",
    "kv_layout": "contiguous",
    "tokenizer_revision": "sha256:0001",
    "architecture_adapter": "llama.cpp/llama",
    "backend_id": "llama.cpp/x86_64-avx2/cpu",
    "runtime_version": "1.2.3",
    "boundary_schema_version": 2,
    "protocol_schema_version": 3,
}
LABELS: Map = {"recipe_id": "small", "recipe_version": "7", "catalogue_version": "2026-09"}
ARTIFACT: Map = {
    "artifact_id": "someone/small",
    "revision": "sha256:0002",
    "content_digest": A,
    "architecture": "llama",
    "architecture_digest": CONFIG,
    "layer_count": 4,
}


def spelled(value: object) -> bytes:
    """The JSON that digests are over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def document(value: object) -> bytes:
    """JSON as somebody might write it."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def domain_digest(domain: str, body: Map) -> str:
    return hashlib.sha256(spelled({"domain": domain, "body": body})).hexdigest()


def identity(**fields: Any) -> Map:
    """The whole model, all of its layers. A `__` in a name goes an object deeper; None takes a field out."""
    value = {"schema_version": 1, "artifact": ARTIFACT, "recipe": {**AXES, **LABELS}, "shard_start": 0, "shard_end": 4}
    return changed(value, **fields)


def binding(start: int, end: int, source: str = A) -> Map:
    return {"source_artifact_digest": source, "shard_start": start, "shard_end": end}


def cut(start: int, end: int, **fields: Any) -> Map:
    """A host that holds these layers, cut from the whole, and computes them."""
    part = identity(
        artifact__content_digest=C, artifact__derived_from=binding(start, end), shard_start=start, shard_end=end
    )
    return changed(part, **fields)


def artifact_digest(value: Map) -> str:
    artifact = value["artifact"]
    cut_from = artifact.get("derived_from")
    source = artifact["content_digest"] if cut_from is None else cut_from["source_artifact_digest"]
    names = ("architecture", "architecture_digest", "layer_count")
    return domain_digest("meshnet.model-artifact.v1", {"source_digest": source, **{n: artifact[n] for n in names}})


def recipe_digest(value: Map) -> str:
    return domain_digest("meshnet.runtime-recipe.v1", {axis: value["recipe"][axis] for axis in AXES})


def fingerprint(value: Map, **fields: Any) -> Map:
    labels = {name: value["recipe"][name] for name in LABELS}
    digests = {"model_artifact_digest": artifact_digest(value), "runtime_recipe_digest": recipe_digest(value)}
    return changed({**digests, **labels}, **fields)


def line(value: Map) -> str:
    """Both digests, as `identity` prints them."""
    return f"{artifact_digest(value)} {recipe_digest(value)}"


def evidence(**fields: Any) -> Map:
    value = {
        "route_session_id": "session-1",
        "route_epoch": 0,
        "node_ids": ["near", "far"],
        "shard_ranges": [[0, 2], [2, 4]],
        "tokens_generated": 1,
        "layer_count": 4,
        "synthetic": False,
        "certified_at_ns": str(STARTED_NS),
    }
    return changed(value, **fields)
