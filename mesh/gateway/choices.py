"""The choices of one request: `n` answers are `n` serves, each with its own request, ids and receipt.

They share the prompt and differ in their seed, which is the first one's plus the index, so that each is replayed from
its own disclosure like any other serve. The first takes the request's place in the queue; the others take what slots
are free and otherwise follow one another in it, so that one request never waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from mesh.errors import EngineError, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway.openai import Call
from mesh.gateway.preparing import Prepared
from mesh.gateway.shapes import Shape
from mesh.gateway.sink import TokenStream
from mesh.schema.ids import serve_id_text
from mesh.schema.limits import MAX_SEED
from mesh.schema.request import Sampling, ServeRequest
from mesh.steward.serves import Repeated, SealedServe

Outcome = asyncio.Future[SealedServe | Repeated]


@dataclass(slots=True)
class Choice:
    """`outcome` is there from the start, also of a choice that has yet to begin. `verdict` says whether a whole answer
    has the format that it has to have."""

    index: int
    request: ServeRequest
    serve_id: bytes
    sink: TokenStream
    outcome: Outcome
    verdict: str | None = None


@dataclass(slots=True)
class Serve:
    """A request on its way, and everything its handler needs to say of it. `repeat` is caller, key and the body's keyed
    hash; `piece` gives the bytes of an id."""

    call: Call
    prepared: Prepared
    shape: Shape
    piece: Callable[[int], bytes]
    choices: list[Choice]
    repeat: tuple[str, str, bytes] | None
    begun: int = 0

    @property
    def headers(self) -> dict[str, str]:
        return {"Mesh-Serve": ", ".join(serve_id_text(choice.serve_id) for choice in self.choices)}

    @property
    def settled(self) -> bool:
        """Whether any of it was served."""
        return any(choice.sink.settled for choice in self.choices)

    def following(self) -> Choice | None:
        """The next choice to begin; None where all have."""
        if self.begun == len(self.choices):
            return None
        self.begun += 1
        return self.choices[self.begun - 1]

    def drop(self, reason: MeshError) -> None:
        """Stop what runs and begin nothing more: there will be no answer."""
        while (choice := self.following()) is not None:
            choice.outcome.set_exception(reason)
            choice.outcome.exception()  # a handler that is gone asks for it no more
            choice.sink.close()
        for choice in self.choices:
            if not choice.outcome.done():
                choice.sink.abandon()

    def abandon(self) -> None:
        """The client is gone."""
        self.drop(EngineUnavailable("the client is gone"))


def request_of(prepared: Prepared, index: int) -> ServeRequest:
    """What choice `index` asks the engine for."""
    sampling = prepared.request.sampling
    if index == 0 or sampling.temperature_u == 0:
        return prepared.request
    seeded = Sampling.from_map({**sampling.to_map(), "seed": (sampling.seed + index) % (MAX_SEED + 1)})
    return ServeRequest.from_map({**prepared.request.to_map(), "sampling": seeded.to_map()})


def fault_of(served: SealedServe) -> EngineError | None:
    """Why a sealed serve is no answer; None where it is one."""
    outcome = served.receipt.outcome
    match outcome.finish:
        case "stop" | "length":
            return None
        case "cancelled":
            return EngineUnavailable("the server is shutting down; the answer was cut")
        case _:
            return served.error or EngineFailed(f"the engine broke its promise: {outcome.reason}")
