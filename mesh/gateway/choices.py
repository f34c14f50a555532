"""The choices of one request: `n` answers are `n` serves, each with its own request, ids and receipt.

They share the prompt and differ in their seed, which is the first one's plus the index, so that each is replayed from
its own disclosure like any other serve. The first takes the request's place in the queue; the others take what slots
are free and otherwise follow one another in it, so that one request never waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mesh.engine.alarm import Alarm
from mesh.errors import DeadlineExceeded, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway.backends import Placed
from mesh.gateway.openai import Call
from mesh.gateway.preparing import Prepared
from mesh.gateway.shapes import Shape
from mesh.gateway.sink import Part, TokenStream
from mesh.schema.ids import serve_id_text
from mesh.schema.limits import MAX_SEED
from mesh.schema.request import Sampling, ServeRequest
from mesh.steward.serves import Repeated, SealedServe

CUT_S = 5.0  # after a cut, how long an engine may take to stop and a client to read the rest
OTHER_CHOICE = "other-choice"  # why a choice was called off whose answer another one spoiled

Outcome = asyncio.Future[SealedServe | Repeated]


@dataclass(slots=True)
class Choice:
    """`outcome` is there from the start, also of a choice that has yet to begin. `verdict` says whether a whole answer
    has the format that it has to have; `waiter` is whoever waits for the outcome now."""

    index: int
    request: ServeRequest
    serve_id: bytes
    sink: TokenStream
    outcome: Outcome
    verdict: str | None = None
    waiter: asyncio.Future[None] | None = None

    def wake(self, _: object = None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


@dataclass(slots=True)
class Serve:
    """A request on its way, and everything its handler needs to say of it. `repeat` is caller, key and the body's keyed
    hash; `piece` gives the bytes of an id; `deadline` is in the seconds of `clock`; `failed` are those on other
    backends, before any token; `first` is what a stream begins with."""

    call: Call
    placed: Placed
    shape: Shape
    piece: Callable[[int], bytes]
    choices: list[Choice]
    repeat: tuple[str, str, bytes] | None
    deadline: float
    clock: Callable[[], float]
    failed: tuple[SealedServe, ...] = ()
    first: Part | None = None
    begun: int = 0
    alarm: Alarm = field(init=False)
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.headers = {"Mesh-Serve": ", ".join([serve_id_text(choice.serve_id) for choice in self.choices])}
        self.alarm = Alarm(self.late)
        self.alarm.set(asyncio.get_running_loop().time() + max(self.deadline - self.clock(), 0))
        for choice in self.choices:
            choice.outcome.add_done_callback(lambda _: self.alarm.close() if self.over else None)

    @property
    def prepared(self) -> Prepared:
        return self.placed.prepared

    @property
    def settled(self) -> bool:
        """Whether any of it was served."""
        return any(choice.sink.settled for choice in self.choices)

    @property
    def over(self) -> bool:
        return all(choice.outcome.done() for choice in self.choices)

    @property
    def patience_s(self) -> float:
        """How long an engine that is called off at the deadline may still take."""
        return max(self.deadline + CUT_S - self.clock(), 0)

    async def ended(self, choice: Choice) -> SealedServe | Repeated:
        """What became of a choice. Raises why it never began, and DeadlineExceeded where it does not end although it
        was called off: it is sealed when it does."""
        if not choice.outcome.done() and self.patience_s > 0:
            choice.waiter = asyncio.get_running_loop().create_future()
            choice.outcome.add_done_callback(choice.wake)
            try:
                await choice.waiter  # and not its outcome, which would be cancelled with whoever waits for it
            finally:
                choice.outcome.remove_done_callback(choice.wake)
                choice.waiter = None
        if not choice.outcome.done():
            self.abandon()
            raise DeadlineExceeded("the request's time is over and the engine does not stop; once it does it is sealed")
        return choice.outcome.result()

    async def more(self, choice: Choice, timeout_s: float) -> Part | None:
        """The next part of a choice, empty after `timeout_s`; None at the end, also that of the patience with an engine
        that was called off."""
        part = await choice.sink.take(min(timeout_s, self.patience_s))
        over = part is not None and not part.text and not part.entries and self.patience_s == 0
        return None if over else part

    def following(self) -> Choice | None:
        """The next choice to begin; None where all have."""
        if self.begun == len(self.choices):
            return None
        self.begun += 1
        return self.choices[self.begun - 1]

    def late(self) -> None:
        """At the deadline: call off what runs. At the end of the patience after it: whoever waits waits no more."""
        self.cut("deadline")
        if self.patience_s > 0:
            self.alarm.set(asyncio.get_running_loop().time() + self.patience_s)
            return
        for choice in self.choices:
            choice.wake()

    def cut(self, by: str) -> None:
        """Call off what runs."""
        for choice in self.choices[: self.begun]:
            choice.sink.cut(by)

    def drop(self, reason: MeshError, by: str) -> None:
        """Stop what runs and begin nothing more: there will be no answer. `by` is what the receipts then say."""
        while (choice := self.following()) is not None:
            choice.outcome.set_exception(reason)
            choice.outcome.exception()  # a handler that is gone asks for it no more
            choice.sink.close()
        for choice in self.choices:
            if not choice.outcome.done():
                choice.sink.cut(by)
                choice.sink.abandon()

    def abandon(self) -> None:
        """The client is gone."""
        self.drop(EngineUnavailable("the client is gone"), "client-gone")


def request_of(prepared: Prepared, index: int) -> ServeRequest:
    """What choice `index` asks the engine for."""
    sampling = prepared.request.sampling
    if index == 0 or sampling.temperature_u == 0:
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
