"""Who may serve a request: decided before any work, over what each candidate says of itself and what its receipts
said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from mesh.engine.protocol import ServingEngine
from mesh.errors import EngineUnavailable, GrantRefused, MeshError, NoCandidate, Overloaded
from mesh.grant.decision import Decision, Used
from mesh.grant.draw import Draw
from mesh.grant.frame import Frame
from mesh.grant.terms import Terms
from mesh.schema.request import ServeRequest
from mesh.steward.costs import Costs
from mesh.steward.granting import frame_of

# Costs that are this close to the least are the same to whoever chooses: a running mean is no finer than that.
_ALIKE = 1.1


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request and the engine chosen for it. `est_uj` is the worst case in microjoules; None where nobody could say.
    Where a grant admitted it, `frame` is what that was decided over, `grant_id` its last block, and `draws` what the
    serve may need of its totals."""

    request: ServeRequest
    engine: ServingEngine
    caller: str
    est_uj: int | None
    grant_id: bytes | None = None
    frame: Frame | None = None
    draws: tuple[Draw, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """The terms that a request comes under, at `steward` and `now_ns`; `used` is what may be known of its totals."""

    terms: Terms
    steward: bytes
    now_ns: int
    used: Used = field(default_factory=dict)

    def decide(
        self, engine: ServingEngine, prompt_tokens: int, max_tokens: int, est_uj: int | None
    ) -> tuple[Frame, Decision]:
        frame = frame_of(
            engine, steward=self.steward, now_ns=self.now_ns, prompt_tokens=prompt_tokens, max_tokens=max_tokens,
            est_uj=est_uj,
        )  # fmt: skip
        return frame, self.terms.decide(frame, used=self.used)


@dataclass(frozen=True, slots=True)
class Offer:
    """A backend, and the request as it would be handed to it: where tokenizers differ, so do prompts."""

    request: ServeRequest
    engine: ServingEngine


class Standing(Protocol):
    """What is known of a backend beside what it says of itself."""

    def answers_to(self, engine: ServingEngine, model: str) -> bool:
        """Whether a request for `model` may be served by `engine`."""
        ...

    def load(self, engine: ServingEngine) -> float:
        """Serves that run or wait, for each that can run at once."""
        ...

    def overloaded(self, engine: ServingEngine) -> Overloaded | None:
        """Why there is no place for this caller now; None where there is."""
        ...

    def waits(self, engine: ServingEngine) -> bool:
        """Whether a serve would wait for its turn, after which it is admitted once more: only then is the engine asked
        whether it is ready."""
        ...


class _Idle:
    """The standing of backends that nobody else uses, and that answer to their name."""

    def answers_to(self, engine: ServingEngine, model: str) -> bool:
        return model == engine.recipe_id

    def load(self, engine: ServingEngine) -> float:
        return 0.0

    def overloaded(self, engine: ServingEngine) -> Overloaded | None:
        return None

    def waits(self, engine: ServingEngine) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Able:
    offer: Offer
    expected_uj: float | None
    worst_uj: int | None
    decided: tuple[Frame, Decision] | None

    def admitted(self, caller: str) -> Admitted:
        plain = Admitted(self.offer.request, self.offer.engine, caller, self.worst_uj)
        if self.decided is None:
            return plain
        frame, decision = self.decided
        return replace(plain, grant_id=decision.grant_id, frame=frame, draws=decision.draws)


async def admit(
    offers: Sequence[Offer],
    *,
    caller: str,
    costs: Costs | None = None,
    standing: Standing | None = None,
    grant: Grant | None = None,
) -> Admitted:
    """The backend that can serve the request, is ready, has a place, and is expected to spend the least energy; among
    those that are expected to spend about the same, the one with the least load. One whose cost nobody knows comes
    after all whose cost is known. Raises NoCandidate with each one's reason; Overloaded where some could and have no
    place; EngineUnavailable where some could and none is ready; GrantRefused where none of those that could is in the
    grant."""
    costs = costs or Costs()
    standing = standing or _Idle()
    able: list[_Able] = []
    reasons: dict[str, str] = {}
    busy: list[Overloaded] = []
    refused: list[GrantRefused] = []
    for offer in offers:
        name = offer.engine.recipe_id
        worst = worst_case_uj(offer.request, offer.engine, costs)
        reason = _reason_against(offer.request, offer.engine, worst, standing)
        decided = None
        if reason is None and grant is not None:
            request = offer.request
            decided = grant.decide(offer.engine, request.prompt_tokens, request.max_tokens, worst)
            for refusal in decided[1].refusals[:1]:
                reason = str(refusal)
                refused.append(refusal.error())
        if reason is not None:
            reasons[name] = reason
        elif (full := standing.overloaded(offer.engine)) is not None:
            reasons[name] = str(full)
            busy.append(full)
        else:
            per_token = costs.uj_per_token(offer.engine)
            expected = None if per_token is None else per_token * _tokens(offer.request)
            able.append(_Able(offer, expected, worst, decided))
    unready: list[EngineUnavailable] = []
    while able:
        best = _best(able, standing)
        able.remove(best)
        try:
            if not standing.waits(best.offer.engine):
                await best.offer.engine.ready()
        except EngineUnavailable as e:
            unready.append(e)
            reasons[best.offer.engine.recipe_id] = str(e)
        else:
            return best.admitted(caller)
    raise _refusal(reasons, busy, unready, refused)


def _refusal(
    reasons: dict[str, str],
    busy: list[Overloaded],
    unready: list[EngineUnavailable],
    refused: list[GrantRefused],
) -> MeshError:
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "there are no backends"
    if busy:
        retry_s = min(full.retry_after_s for full in busy)
        return busy[0] if len(reasons) == 1 else Overloaded(f"no backend has room: {listed}", retry_after_s=retry_s)
    if unready:
        return unready[0] if len(reasons) == 1 else EngineUnavailable(f"no backend is ready: {listed}")
    if refused:
        return refused[0]
    return NoCandidate(f"no backend may serve this request: {listed}", reasons=reasons)


def _best(able: Sequence[_Able], standing: Standing) -> _Able:
    known = [one.expected_uj for one in able if one.expected_uj is not None]
    bound = min(known) * _ALIKE if known else None
    alike = able if bound is None else [o for o in able if o.expected_uj is not None and o.expected_uj <= bound]
    return min(alike, key=lambda one: (standing.load(one.offer.engine), one.expected_uj or 0.0))


def worst_case_uj(request: ServeRequest, engine: ServingEngine, costs: Costs) -> int | None:
    """For the whole prompt and every token that may come: the higher of what the engine estimates and what its
    receipts said; None where neither is known."""
    known = [cost for cost in (engine.est_uj_per_token, costs.learned(engine)) if cost is not None]
    return math.ceil(max(known) * _tokens(request)) if known else None


def _tokens(request: ServeRequest) -> int:
    return request.prompt_tokens + request.max_tokens


def _reason_against(
    request: ServeRequest, engine: ServingEngine, worst_uj: int | None, standing: Standing
) -> str | None:
    if request.model is not None and not standing.answers_to(engine, request.model):
        return f"serves {engine.recipe_id!r}, the request asks for {request.model!r}"
    if engine.fidelity < request.fidelity_floor:
        return f"fidelity F{int(engine.fidelity)} is below the floor F{request.fidelity_floor}"
    if _tokens(request) > engine.context_tokens:
        return f"prompt and max_tokens are {_tokens(request)} tokens, the context holds {engine.context_tokens}"
    if request.joule_ceiling_uj is not None:
        if worst_uj is None:
            return "the request has a joule ceiling and this backend cannot estimate its cost"
        if worst_uj > request.joule_ceiling_uj:
            return f"may cost {worst_uj} uJ, the ceiling is {request.joule_ceiling_uj} uJ"
    return engine.refusal(request)
