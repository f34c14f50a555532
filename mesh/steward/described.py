"""An engine as a receipt describes it, made once per engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh.engine.protocol import ServingEngine, identity_of
from mesh.schema.canonical import encode
from mesh.schema.disclosure import settings_digest
from mesh.schema.receipt import EngineBlock


@dataclass(frozen=True, slots=True)
class Described:
    """The engine block and settings document, with the canonical bytes of both."""

    block: EngineBlock
    block_bytes: bytes
    settings: dict[str, Any]
    settings_bytes: bytes


def describe(engine: ServingEngine, *, deterministic: bool, launch: bytes | None = None) -> Described:
    """`launch` is the digest of the record of how the engine was launched, where there is one."""
    settings = dict(engine.settings)
    identity = identity_of(engine)
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
        model_artifact_digest=artifact,
        runtime_recipe_digest=recipe,
        launch_digest=launch,
    )
    return Described(block, block.to_cbor(), settings, encode(settings))
