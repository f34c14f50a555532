"""An engine as a receipt describes it, made once per engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh.engine.protocol import ServingEngine, blueprint_of, identity_of, shard_route_of
from mesh.schema.canonical import encode
from mesh.schema.disclosure import settings_digest
from mesh.schema.receipt import EngineBlock


@dataclass(frozen=True, slots=True)
class Described:
    """The engine block and settings document, with the canonical bytes of both, and those of the route's document where
    the engine is a route of shards."""

    block: EngineBlock
    block_bytes: bytes
    settings: dict[str, Any]
    settings_bytes: bytes
    route_bytes: bytes | None = None


def describe(engine: ServingEngine, *, deterministic: bool, launch: bytes | None = None) -> Described:
    """`launch` is the digest of the record of how the engine was launched, where there is one."""
    settings = dict(engine.settings)
    identity, route = identity_of(engine), shard_route_of(engine)
    artifact, recipe = (None, None) if identity is None else map(bytes.fromhex, identity.fingerprint.key)
    block = EngineBlock.of(
        backend_id=engine.backend_id,
        recipe_id=engine.recipe_id,
        fidelity=int(engine.fidelity),
        deterministic=deterministic,
        settings_digest=settings_digest(settings),
        process=engine.process,
        weights_digest=engine.weights_digest,
        template_digest=engine.template_digest,
        blueprint_id=blueprint_of(engine),
        model_artifact_digest=artifact,
        runtime_recipe_digest=recipe,
        route_digest=None if route is None else route.digest,
        launch_digest=launch,
    )
    route_bytes = None if route is None else encode(route.document)
    return Described(block, block.to_cbor(), settings, encode(settings), route_bytes)
