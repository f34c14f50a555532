"""A grant over the serve that an engine would run."""

from __future__ import annotations

from mesh.engine.protocol import ServingEngine, blueprint_of, identity_of
from mesh.grant.frame import Frame
from mesh.schema.limits import MAX_UINT


def frame_of(
    engine: ServingEngine, *, steward: bytes, now_ns: int, prompt_tokens: int, max_tokens: int, est_uj: int | None
) -> Frame:
    """What the engine is, and not what the request says of it."""
    identity = identity_of(engine)
    return Frame.of(
        steward=steward,
        recipe_id=engine.recipe_id,
        backend_id=engine.backend_id,
        fidelity=int(engine.fidelity),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        now_ns=now_ns,
        weights_digest=engine.weights_digest,
        blueprint_id=blueprint_of(engine),
        runtime_recipe_digest=None if identity is None else bytes.fromhex(identity.recipe.runtime_recipe_digest),
        est_uj=None if est_uj is None else min(est_uj, MAX_UINT),
    )
