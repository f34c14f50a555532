"""One run of the replayer's engine, and what makes it a run that proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mesh.engine.call_off import CallOff
from mesh.engine.protocol import Scores, Served, ServingEngine
from mesh.errors import EngineFailed, Refused
from mesh.schema.outcome import Finish
from mesh.schema.request import ServeRequest


@dataclass(frozen=True, slots=True)
class Decoding:
    """Two are equal where all that can be judged is. `finish` and `accepted` are None where the run was cut: how it
    would have gone on says nothing about the serve. `margins` are in logits, one per id."""

    tokens: tuple[int, ...]
    finish: Finish | None
    accepted: int | None
    margins: tuple[float, ...] | None = field(compare=False)

    def margin(self, index: int) -> float | None:
        """The distance between the best two logits at an index, None where unknown."""
        if self.margins is None or index >= len(self.margins):
            return None
        margin = self.margins[index]
        return margin if 0 <= margin < float("inf") else None  # nan compares false


class _Tape:
    """Keeps what an engine puts, and wants no more after `length` ids; None: all of them. What an engine has in its
    prefix cache from other serves decides nothing in a replay."""

    cold = True

    def __init__(self, length: int | None) -> None:
        self.cancelled = CallOff()
        self.tokens: list[int] = []
        self._length = length
        if length == 0:
            self.cancelled.set()

    def put(self, token: int, scores: Scores | None = None) -> None:
        self.tokens.append(token)
        if len(self.tokens) == self._length:
            self.cancelled.set()


async def decode(
    engine: ServingEngine, request: ServeRequest, payload: Sequence[int], *, length: int | None
) -> Decoding:
    """Serve the request again and keep the first `length` ids, or all where it is None. Raises EngineError where the
    engine cannot, will not, or breaks a promise that would have kept a serve from being sealed as finished."""
    await engine.ready()
    refusal = engine.refusal(request)
    if refusal is not None:
        raise EngineFailed(f"{engine.backend_id}: refuses the request: {refusal}")
    tape = _Tape(length)
    try:
        served = await engine.serve(request, payload, tape)
    except Refused as e:  # an id or a length that it does not take, in a payload that nothing has vouched for
        raise EngineFailed(f"{engine.backend_id}: refuses the serve: {e}") from e
    fault = _broken_promise(engine, request, tape, served, length)
    if fault is not None:
        raise EngineFailed(f"{engine.backend_id}: {fault}")
    if length is not None:
        return Decoding(served.tokens[:length], None, None, served.margins)
    return Decoding(served.tokens, served.outcome.finish, served.outcome.tokens_accepted, served.margins)


def _broken_promise(
    engine: ServingEngine, request: ServeRequest, tape: _Tape, served: Served, length: int | None
) -> str | None:
    told, made = served.outcome, len(served.tokens)
    if tuple(tape.tokens) != served.tokens:
        return "the ids that it streamed are not those that it returned"
    if told.weights_digest != engine.weights_digest:
        return "it ran other weights than it named"
    if told.tokens_out not in (None, made):
        return f"it made {made} ids and counted {told.tokens_out}"
    match told.finish:
        case "stop":
            return None
        case "length":
            return None if made == request.max_tokens else f"length after {made} of {request.max_tokens} ids"
        case "cancelled":
            return None if length is not None and made >= length else f"it stopped uncalled after {made} ids"
        case _:
            return f"it ended as {told.finish}"
