"""The backends there are: what each is called, how much room it has, and which of them gets a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from mesh.engine.protocol import (
    Decider,
    ScoringEngine,
    ServingEngine,
    TextEngine,
    has_text,
    identity_of,
    shard_route_of,
    tool_form,
)
from mesh.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineUnavailable,
    IdentityChanged,
    MeshError,
    NoCandidate,
    NotFound,
    Overloaded,
    Refused,
    UsageError,
    WeightsChanged,
)
from mesh.gateway.config import GatewayConfig
from mesh.gateway.openai import Call
from mesh.gateway.preparing import Prepared, prepare
from mesh.gateway.room import Room
from mesh.grant.decision import NOTHING_USED, Used
from mesh.grant.terms import Terms
from mesh.identity.mismatch import explain, listed
from mesh.identity.shard import ShardIdentity
from mesh.schema.ids import ContentId
from mesh.schema.record import Record
from mesh.schema.value import check_name
from mesh.steward.admission import Admitted, Offer
from mesh.steward.steward import Steward


@dataclass(frozen=True, slots=True)
class Route:
    """How requests come to a backend: the `aliases` it answers to beside its own name, which others may share, and a
    `queue` of its own in place of the gateway's."""

    aliases: tuple[str, ...] = ()
    queue: int | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """`text` is the engine's text side, where it has one; `identity` what the engine was when the gateway began, None
    where it had none."""

    name: str
    engine: ServingEngine
    text: TextEngine | None
    room: Room
    aliases: frozenset[str]
    identity: ShardIdentity | None = None

    @property
    def taken_out(self) -> IdentityChanged | None:
        """Why it may serve nobody until the gateway is started again: it is no longer what it was, and the error names
        every axis. None where it is."""
        if self.identity is None or (now := identity_of(self.engine)) is self.identity:
            return None
        if now is None:
            return IdentityChanged(f"backend {self.name!r}: no longer says what it is, as it did when it was taken in")
        changed = explain(self.identity, now)
        return IdentityChanged(f"backend {self.name!r}: taken out: {listed(changed)}") if changed else None


class Placed(Record):
    """A request that has its backend and a slot there, to be given back with `leave`."""

    prepared: Prepared
    admitted: Admitted
    backend: Backend


class Backends:
    """Raises UsageError where two have one name, where one's alias is another's name, and for a name that no receipt
    could hold; RecipeNotCertified for a route of shards whose recipe is unknown or dark."""

    def __init__(
        self,
        steward: Steward,
        engines: Sequence[ServingEngine],
        config: GatewayConfig,
        routes: Sequence[Route] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [engine.recipe_id for engine in engines]
        for name in names:
            check_name(name, "backend")  # one that a vLLM server gave itself was looked at by nobody before
        if len(set(names)) != len(names):
            raise UsageError(f"two backends serve one model name: {', '.join(names)}; an alias is what they may share")
        self._steward = steward
        self._clock = clock
        self._max_tokens = config.max_output_tokens
        self._prepare = partial(
            prepare,
            default_max_tokens=min(config.default_max_tokens, config.max_output_tokens or config.default_max_tokens),
            max_prompt_tokens=config.max_prompt_tokens,
        )
        self.all: list[Backend] = []
        for engine, route in zip(engines, routes or [Route()] * len(engines), strict=True):
            for alias in route.aliases:
                if alias in names:
                    raise UsageError(f"alias {alias!r} of backend {engine.recipe_id!r} is the name of a backend")
            queue = config.queue if route.queue is None else route.queue
            room = Room(engine.slots, queue, config.queue_wait_s, clock)
            _check_certified(engine, steward)
            aliases = frozenset(route.aliases)
            text = engine if has_text(engine) else None
            self.all.append(Backend(engine.recipe_id, engine, text, room, aliases, identity_of(engine)))
        self._named = {
            model: [backend for backend in self.all if model == backend.name or model in backend.aliases]
            for model in self.names
        }
        self._prompt_kinds: dict[bytes, tuple[object, ...]] = {}

    @property
    def names(self) -> list[str]:
        """What a client may ask for: the backends, then what several of them share."""
        aliases = {alias: None for backend in self.all for alias in sorted(backend.aliases)}
        return [*(backend.name for backend in self.all), *aliases]

    def named(self, model: str) -> Sequence[Backend]:
        """Those that answer to `model`, at least one. Raises NotFound (`model_not_found`) naming what is served."""
        found = self._named.get(model)
        if found is None:
            served = ", ".join(map(repr, self.names))
            raise NotFound(
                f"model {model!r} is not served here; served: {served}", code="model_not_found", param="model"
            )
        return found

    def within(self, model: str, grant: Terms | None) -> Sequence[Backend]:
        """Those that answer to `model` and that the `grant`, where there is one, may admit. Raises as `named` does, and
        GrantRefused."""
        backends = self.named(model)
        return backends if grant is None else self._granted(backends, grant, 1)

    def close(self) -> None:
        """Let no request in any more, and send away those that wait."""
        for backend in self.all:
            backend.room.close()

    async def place(
        self,
        call: Call,
        caller: str,
        deadline: float,
        *,
        tried: Collection[str] = (),
        grant: Terms | None = None,
    ) -> Placed:
        """Find the backend for a request and wait for a slot there, until the clock says `deadline`. Those in `tried`
        are left out, and those that are not in the `grant`. Raises a Refused with each backend's reason,
        EngineUnavailable, DeadlineExceeded."""
        limit = self._max_tokens
        if limit is not None and (call.max_tokens or 0) > limit:
            raise BadRequest(
                f"max_tokens: {call.max_tokens}, at most {limit}", code="invalid_value", param="max_tokens"
            )
        backends = self.named(call.model)
        if tried:
            backends = [backend for backend in backends if backend.name not in tried]
            if not backends:
                raise EngineUnavailable(f"every backend of {call.model!r} was tried")
        if grant is not None:
            used = await self._steward.used_up(grant)
            backends = await _unchanged(self._granted(backends, grant, call.max_tokens or 1, used))
        backends = _open(backends, caller)
        # whoever is alone is not made to wait twice; one that has others to serve has mostly been asked just now
        asking = None if len(backends) > 1 or backends[0].room.running else _asking(backends[0])
        try:
            if len(backends) == 1:
                (backend,) = backends
                readings = {backend.name: (backend, await self._prepare(call, backend.engine, backend.text))}
            else:
                readings = await self._readings(call, backends)
            unready = None if asking is None else await _fault_of(asking)
        except BaseException:
            if asking is not None:
                asking.cancel()
            raise
        asked = asking is not None
        while True:
            offers = [
                Offer(one.request, backend.engine, backend.aliases, backend.room, asked)
                for backend, one in readings.values()
            ]
            asked = False
            admitted = await self._steward.choose(offers, caller=caller, grant=grant)
            if unready is not None:
                raise unready
            backend, one = readings[admitted.engine.recipe_id]
            room = backend.room
            if room.take():
                return Placed(one, admitted, backend)
            if room.overloaded(caller) is not None:
                continue  # it filled while others were asked whether they are ready
            await self._wait(room, caller, deadline)
            try:
                # while this one waited, the engine may have gone, or become another
                if (changed := backend.taken_out) is not None:
                    raise changed
                offer = Offer(one.request, backend.engine, backend.aliases)  # it has its place
                admitted = await self._steward.choose([offer], caller=caller, grant=grant)
            except EngineUnavailable:
                room.leave(self._clock())
                del readings[backend.name]
                if not readings:
                    raise
                continue
            except BaseException:
                room.leave(self._clock())
                raise
            return Placed(one, admitted, backend)

    def _granted(
        self, backends: Sequence[Backend], grant: Terms, max_tokens: int, used: Used = NOTHING_USED
    ) -> list[Backend]:
        """Those that the grant may admit. Raises GrantRefused, without a question to any engine, where it is none."""
        refused = [self._steward.refusal(each.engine, grant, max_tokens=max_tokens, used=used) for each in backends]
        admitted = [backend for backend, why in zip(backends, refused, strict=True) if why is None]
        for why in refused:
            if why is not None and not admitted:
                raise why
        return admitted

    async def _wait(self, room: Room, caller: str, deadline: float) -> None:
        try:
            await room.enter(caller, max(deadline - self._clock(), 0))
        except TimeoutError:
            raise DeadlineExceeded("the request's time was over before it had a slot; nothing was served") from None

    async def _readings(self, call: Call, backends: Sequence[Backend]) -> dict[str, tuple[Backend, Prepared]]:
        """The request as each backend would read it. One that cannot read it is left out; raises where none can."""
        made: dict[tuple[object, ...], Prepared | Refused | EngineUnavailable] = {}
        ready: dict[str, tuple[Backend, Prepared]] = {}
        faults: dict[str, Refused | EngineUnavailable] = {}
        for backend in backends:
            kind = self._prompt_kind(call, backend.engine)
            if kind not in made:
                try:
                    made[kind] = await self._prepare(call, backend.engine, backend.text)
                except (Refused, EngineUnavailable) as e:
                    made[kind] = e
            one = made[kind]
            if isinstance(one, Prepared):
                ready[backend.name] = (backend, one)
            else:
                faults[backend.name] = one
        if ready:
            return ready
        first, *others = faults.values()
        if any(type(fault) is not type(first) for fault in others):
            reasons = {name: str(fault) for name, fault in faults.items()}
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise NoCandidate(f"no backend may serve this request: {listed}", reasons=reasons)
        raise first

    def _prompt_kind(self, call: Call, engine: ServingEngine) -> tuple[object, ...]:
        """Equal for engines that read a request alike: same weights, template and settings, and able to do the same.
        Where the weights are not known, and where each has to be told a grammar, each reads for itself."""
        if engine.weights_digest is None or call.held:
            return (engine.process,)
        kind = self._prompt_kinds.get(engine.process)
        if kind is None:
            settings = ContentId.of("settings", dict(engine.settings))
            scores = isinstance(engine, ScoringEngine) and engine.max_scores
            able = (tool_form(engine), scores, isinstance(engine, Decider))
            kind = (engine.weights_digest, engine.template_digest, engine.context_tokens, settings, able)
            if len(self._prompt_kinds) > 4 * len(self.all):
                self._prompt_kinds.clear()  # of processes that are gone
            self._prompt_kinds[engine.process] = kind
        return kind


def _open(backends: Sequence[Backend], caller: str) -> Sequence[Backend]:
    """Those that are what they were when they were taken in; that all of them are full is said before the work of
    tokenizing. Raises IdentityChanged, Overloaded."""
    left: list[Backend] = []
    changed: list[IdentityChanged] = []
    full: list[Overloaded] = []
    for backend in backends:
        if (why := backend.taken_out) is not None:
            changed.append(why)
            continue
        left.append(backend)
        if (fault := backend.room.overloaded(caller)) is not None:
            full.append(fault)
    if not left:
        raise changed[0]
    if len(full) == len(left):
        raise min(full, key=lambda fault: fault.retry_after_s)
    return left


def _asking(backend: Backend) -> asyncio.Task[None]:
    """The one backend that there is is asked whether it is ready while it reads the prompt."""
    asking = asyncio.ensure_future(backend.engine.ready())
    asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # nobody may want to know any more
    return asking


async def _fault_of(asking: asyncio.Task[None]) -> MeshError | None:
    """Why the backend that was asked is not ready. Whether it may serve the request at all is said first."""
    try:
        await asking
    except MeshError as e:
        return e
    return None


async def _unchanged(backends: Sequence[Backend]) -> list[Backend]:
    """Those whose weights are still what a grant was held against: asked before an engine reads a word of the prompt.
    One that is away for another reason may be back when its turn comes. Raises WeightsChanged where none is left."""
    changed: WeightsChanged | None = None
    left: list[Backend] = []
    for backend in backends:
        try:
            await backend.engine.ready()
        except WeightsChanged as e:
            changed = changed or e
            continue
        except EngineUnavailable:
            pass
        left.append(backend)
    if changed is not None and not left:
        raise changed
    return left


def _check_certified(engine: ServingEngine, steward: Steward) -> None:
    """Raises RecipeNotCertified for a route of shards that no real forward has shown to work: users' requests go to
    certified ones alone."""
    route = shard_route_of(engine)
    if route is not None:
        steward.reader.registry().require_serving(route.shards[0])
