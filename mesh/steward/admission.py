"""Who may serve a request: decided before any work, over what each candidate says of itself and what its receipts
said."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mesh.engine.protocol import ServingEngine
from mesh.errors import EngineUnavailable, GrantRefused, MeshError, NoCandidate, Overloaded
from mesh.grant.decision import Decision, Used
from mesh.grant.draw import Draw
from mesh.grant.frame import Frame
from mesh.grant.terms import Terms
from mesh.schema.record import Record
from mesh.schema.request import ServeRequest
from mesh.steward.costs import Costs
from mesh.steward.granting import frame_of

# Costs that are this close to the least are the same to whoever chooses: a running mean is no finer than that.
_ALIKE = 1.1


class Admitted(Record):
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


class Place(Protocol):
    """Where the serves of a backend run and wait."""

    @property
    def load(self) -> float:
        """Serves that run or wait, for each that can run at once."""
        ...

    @property
    def full(self) -> bool:
        """Whether the next serve would wait for its turn, after which it is admitted once more: only then is the engine
        asked whether it is ready."""
        ...

    def overloaded(self, caller: str) -> Overloaded | None:
        """Why there is no place for another serve of this caller now; None where there is."""
        ...


class _Idle:
    """The place of a backend that nobody else uses, or of a serve that has its slot there."""

    load = 0.0
    full = False

    def overloaded(self, caller: str) -> Overloaded | None:
        return None


_IDLE: Final = _Idle()


class Offer(Record):
    """A backend, and the request as it would be handed to it: where tokenizers differ, so do prompts. It answers to
    `aliases` beside its name; one that was `asked` just now whether it is ready is not asked again."""

    request: ServeRequest
    engine: ServingEngine
    aliases: Collection[str] = ()
    place: Place = _IDLE
    asked: bool = False


async def admit(
    offers: Sequence[Offer], *, caller: str, costs: Costs | None = None, grant: Grant | None = None
) -> Admitted:
    """The backend that can serve the request, is ready, has a place, and is expected to spend the least energy; among
    those that are expected to spend about the same, the one with the least load. One whose cost nobody knows comes
    after all whose cost is known. Raises NoCandidate with each one's reason; Overloaded where some could and have no
    place; EngineUnavailable where some could and none is ready; GrantRefused where none of those that could is in the
    grant."""
    costs = costs or Costs()
    able: list[tuple[Offer, Admitted]] = []
    reasons: dict[str, str] = {}
    busy: list[Overloaded] = []
    refused: list[GrantRefused] = []
    for offer in offers:
        request, engine = offer.request, offer.engine
        worst = worst_case_uj(request, engine, costs)
        admitted = Admitted(request, engine, caller, worst)
        reason = _reason_against(offer, worst)
        if reason is None and grant is not None:
            frame, decision = grant.decide(engine, request.prompt_tokens, request.max_tokens, worst)
            admitted = Admitted(request, engine, caller, worst, decision.grant_id, frame, decision.draws)
            for refusal in decision.refusals[:1]:
                reason = str(refusal)
                refused.append(refusal.error())
        if reason is not None:
            reasons[engine.recipe_id] = reason
        elif (full := offer.place.overloaded(caller)) is not None:
            reasons[engine.recipe_id] = str(full)
            busy.append(full)
        else:
            able.append((offer, admitted))
    unready: list[EngineUnavailable] = []
    while able:
        best = 0 if len(able) == 1 else _best(able, costs)
        offer, admitted = able[best]
        try:
            if not offer.asked and not offer.place.full:
                await offer.engine.ready()
        except EngineUnavailable as e:
            del able[best]
            unready.append(e)
            reasons[offer.engine.recipe_id] = str(e)
        else:
            return admitted
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


def _best(able: Sequence[tuple[Offer, Admitted]], costs: Costs) -> int:
    """Where the best of them stands."""
    expected = [expected_uj(offer.request, offer.engine, costs) for offer, _ in able]
    known = [cost for cost in expected if cost is not None]
    bound = min(known) * _ALIKE if known else None
    alike = [
        (able[number][0].place.load, cost or 0.0, number)  # of those that are alike in all, the first
        for number, cost in enumerate(expected)
        if bound is None or (cost is not None and cost <= bound)
    ]
    return min(alike)[2]


def expected_uj(request: ServeRequest, engine: ServingEngine, costs: Costs) -> float | None:
    """For the whole prompt and every token that may come, as `Costs.uj_per_token`; None where nobody can say."""
    per_token = costs.uj_per_token(engine)
    return None if per_token is None else per_token * _tokens(request)


def worst_case_uj(request: ServeRequest, engine: ServingEngine, costs: Costs) -> int | None:
    """For the whole prompt and every token that may come: the higher of what the engine estimates and what its
    receipts said; None where neither is known."""
    per_token: float | None = engine.est_uj_per_token
    learned = costs.learned(engine)
    if per_token is None or (learned is not None and learned > per_token):
        per_token = learned
    return None if per_token is None else math.ceil(per_token * _tokens(request))


def _tokens(request: ServeRequest) -> int:
    return request.prompt_tokens + request.max_tokens


def _reason_against(offer: Offer, worst_uj: int | None) -> str | None:
    request, engine = offer.request, offer.engine
    if request.model not in (None, engine.recipe_id) and request.model not in offer.aliases:
        return f"serves {engine.recipe_id!r}, the request asks for {request.model!r}"
    if engine.fidelity < request.fidelity_floor:
        return f"fidelity F{int(engine.fidelity)} is below the floor F{request.fidelity_floor}"
    tokens = request.prompt_tokens + request.max_tokens
    if tokens > engine.context_tokens:
        return f"prompt and max_tokens are {tokens} tokens, the context holds {engine.context_tokens}"
    if request.joule_ceiling_uj is not None:
        if worst_uj is None:
            return "the request has a joule ceiling and this backend cannot estimate its cost"
        if worst_uj > request.joule_ceiling_uj:
            return f"may cost {worst_uj} uJ, the ceiling is {request.joule_ceiling_uj} uJ"
    return engine.refusal(request)
