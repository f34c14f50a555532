"""The choices of one request: `n` answers are `n` serves, each with its own request, ids and receipt.

They share the prompt and differ in their seed, which is the first one's plus the index, so that each is replayed from
its own disclosure like any other serve. The first takes the request's place in the queue; the others take what slots
are free and otherwise follow one another in it, so that one request never waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mesh.errors import DeadlineExceeded, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway.backends import Placed
from mesh.gateway.openai import Call
from mesh.gateway.preparing import Prepared
from mesh.gateway.shapes import Shape
from mesh.gateway.sink import Part, TokenStream
from mesh.schema.limits import MAX_SEED
from mesh.schema.request import Sampling, ServeRequest
from mesh.steward.serves import Repeated, SealedServe

CUT_S = 5.0  # after a cut, how long an engine may take to stop and a client to read the rest
OTHER_CHOICE = "other-choice"  # why a choice was called off whose answer another one spoiled


@dataclass(slots=True, eq=False)
class Choice:
    """Once it is `over` it was `served`, or there is an `error` that says why not. `verdict` says whether a whole
    answer has the format that it has to have; `waiter` is whoever waits for its end now."""

    index: int
    request: ServeRequest
    serve_id: bytes
    sink: TokenStream
    over: bool = False
    served: SealedServe | Repeated | None = None
    error: BaseException | None = None
    verdict: str | None = None
    waiter: asyncio.Future[None] | None = None

    def end(self, served: SealedServe | Repeated | None, error: BaseException | None = None) -> None:
        self.over, self.served, self.error = True, served, error
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


@dataclass(slots=True, eq=False)
class Serve:
    """A request on its way, and everything its handler needs to say of it. `headers` go with its answer; `repeat` is
    caller, key and the body's keyed hash; `piece` gives the bytes of an id; `deadline` is in the seconds of `clock`;
    `failed` are those on other backends, before any token; `first` is what a stream begins with; so many choices have
    `begun`, in their order."""

    call: Call
    placed: Placed
    shape: Shape
    headers: dict[str, str]
    piece: Callable[[int], bytes]
    choices: list[Choice]
    repeat: tuple[str, str, bytes] | None
    deadline: float
    clock: Callable[[], float]
    failed: tuple[SealedServe, ...] = ()
    first: Part | None = None
    begun: int = 0

    @property
    def prepared(self) -> Prepared:
        return self.placed.prepared

    @property
    def settled(self) -> bool:
        """Whether any of it was served."""
        return any(choice.sink.settled for choice in self.choices)

    @property
    def over(self) -> bool:
        for choice in self.choices:  # noqa: SIM110  asked at the end of every choice, of which there is mostly one
            if not choice.over:
                return False
        return True

    @property
    def patience_s(self) -> float:
        """How long an engine that is called off at the deadline may still take."""
        return max(self.deadline + CUT_S - self.clock(), 0)

    async def ended(self, choice: Choice) -> SealedServe | Repeated:
        """What became of a choice. Raises why it never began, and DeadlineExceeded where it does not end although it
        was called off: it is sealed when it does."""
        if not choice.over and self.clock() < self.deadline + CUT_S:
            choice.waiter = asyncio.get_running_loop().create_future()
            try:
                await choice.waiter
            finally:
                choice.waiter = None
        if choice.served is not None:
            return choice.served
        if choice.error is not None:
            raise choice.error
        self.abandon()
        raise DeadlineExceeded("the request's time is over and the engine does not stop; once it does it is sealed")

    async def more(self, choice: Choice, timeout_s: float) -> Part | None:
        """The next part of a choice, empty after `timeout_s`; None at the end, also that of the patience with an engine
        that was called off."""
        part = await choice.sink.take(min(timeout_s, self.patience_s))
        over = part is not None and not part.text and not part.entries and self.patience_s == 0
        return None if over else part

    def late(self) -> float | None:
        """At the deadline: calls off what runs, and returns in how many seconds to be told again. At the end of that
        patience: whoever waits waits no more."""
        self.cut("deadline")
        if self.patience_s > 0:
            return self.patience_s
        for choice in self.choices:
            choice.wake()
        return None

    def cut(self, by: str) -> None:
        """Call off what runs."""
        for choice in self.choices[: self.begun]:
            choice.sink.cut(by)

    def drop(self, reason: MeshError, by: str) -> None:
        """Stop what runs and begin nothing more: there will be no answer. `by` is what the receipts then say."""
        begun, self.begun = self.begun, len(self.choices)
        for choice in self.choices[begun:]:
            choice.end(None, reason)
            choice.sink.close()
        for choice in self.choices:
            if not choice.over:
                choice.sink.cut(by)
                choice.sink.abandon()

    def abandon(self) -> None:
        """The client is gone."""
        self.drop(EngineUnavailable("the client is gone"), "client-gone")


def request_of(prepared: Prepared, index: int) -> ServeRequest:
    """What choice `index` asks the engine for, which is not the first one."""
    sampling = prepared.request.sampling
    if sampling.temperature_u == 0:
        return prepared.request
    seeded = Sampling.from_map({**sampling.to_map(), "seed": (sampling.seed + index) % (MAX_SEED + 1)})
    return ServeRequest.from_map({**prepared.request.to_map(), "sampling": seeded.to_map()})


def fault_of(served: SealedServe) -> MeshError | None:
    """Why a sealed serve is no answer; None where it is one."""
    outcome = served.receipt.outcome
    match outcome.finish:
        case "stop" | "length":
            return None
        case "cancelled" if outcome.reason == "deadline":
            return DeadlineExceeded("the request's time is over; the answer was cut")
        case "cancelled" if outcome.reason == OTHER_CHOICE:
            return EngineUnavailable("another choice of the request failed; this one was stopped")
        case "cancelled":
            return EngineUnavailable("the server is shutting down; the answer was cut")
        case _:
            return served.error or EngineFailed(f"the engine broke its promise: {outcome.reason}")
