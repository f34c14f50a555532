"""Who may serve a request: decided before any work, over what each candidate says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.engine.protocol import ServingEngine
from mesh.errors import EngineUnavailable, NoCandidate
from mesh.schema.request import ServeRequest


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request and the engine chosen for it. `est_uj` is the worst case in microjoules; None where nobody could say.
    `grant_id` is the block that a grant was accepted by."""

    request: ServeRequest
    engine: ServingEngine
    caller: str
    est_uj: int | None
    grant_id: bytes | None = None


async def admit(request: ServeRequest, candidates: Sequence[ServingEngine], *, caller: str) -> Admitted:
    """The cheapest candidate that can serve the request and is ready. Raises NoCandidate with each one's reason, or
    EngineUnavailable where the only reason is that none is ready."""
    able: list[tuple[int | None, ServingEngine]] = []
    reasons: dict[str, str] = {}
    for engine in candidates:
        estimate = worst_case_uj(request, engine)
        reason = _reason_against(request, engine, estimate)
        if reason is None:
            able.append((estimate, engine))
        else:
            reasons[engine.backend_id] = reason
    # an engine that cannot say what it costs comes after all that can
    able.sort(key=lambda pair: (pair[0] is None, pair[0] or 0))
    unavailable: EngineUnavailable | None = None
    for estimate, engine in able:
        try:
            await engine.ready()
        except EngineUnavailable as e:
            unavailable = e
            reasons[engine.backend_id] = str(e)
        else:
            return Admitted(request, engine, caller, estimate)
    if unavailable is not None:
        raise unavailable
    listed = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items()) or "there are no backends"
    raise NoCandidate(f"no backend may serve this request: {listed}", reasons=reasons)


def worst_case_uj(request: ServeRequest, engine: ServingEngine) -> int | None:
    """The estimate for the whole prompt and every token that may come."""
    if engine.est_uj_per_token is None:
        return None
    return engine.est_uj_per_token * (request.prompt_tokens + request.max_tokens)


def _reason_against(request: ServeRequest, engine: ServingEngine, estimate: int | None) -> str | None:
    if request.model is not None and request.model != engine.recipe_id:
        return f"serves {engine.recipe_id!r}, the request asks for {request.model!r}"
    if engine.fidelity < request.fidelity_floor:
        return f"fidelity F{int(engine.fidelity)} is below the floor F{request.fidelity_floor}"
    if request.prompt_tokens + request.max_tokens > engine.context_tokens:
        asked = request.prompt_tokens + request.max_tokens
        return f"prompt and max_tokens are {asked} tokens, the context holds {engine.context_tokens}"
    if request.joule_ceiling_uj is not None:
        if estimate is None:
            return "the request has a joule ceiling and this backend cannot estimate its cost"
        if estimate > request.joule_ceiling_uj:
            return f"may cost {estimate} uJ, the ceiling is {request.joule_ceiling_uj} uJ"
    return engine.refusal(request)
