"""One answer, from a request's bytes to its sealed receipt: `/v1/chat/completions`, `/v1/completions` and
`/mesh/v1/decide`.

The serve runs in a task of its own that outlives its handler: a client that goes away is told to the engine through the
sink, and the receipt is sealed all the same. What is refused before the intent is written has a plain HTTP status; the
first byte of a stream goes out only after that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from mesh.errors import BadRequest, DeadlineExceeded, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway import shapes
from mesh.gateway.answering import Answering, held_answer
from mesh.gateway.backends import Backends, Placed
from mesh.gateway.choices import CUT_S, OTHER_CHOICE, Choice, Serve, fault_of, request_of
from mesh.gateway.config import GatewayConfig
from mesh.gateway.deadlines import Deadlines
from mesh.gateway.deciding import parse_decide
from mesh.gateway.intake import Intake
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.gateway.repeats import Answers
from mesh.gateway.sink import TokenStream
from mesh.grant.terms import Terms
from mesh.ledger import Idempotency
from mesh.schema.ids import serve_id_text
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Steward

log = logging.getLogger("mesh.gateway")

_REPEAT_KEY = "Idempotency-Key"
_MAX_KEY_CHARS = 255
_HUNG_S = 10.0  # after a cut and CUT_S, how long an engine may take to notice that nobody wants more

# What a handler tells the access log.
CALLER = web.RequestKey("caller", str)
SERVE = web.RequestKey("serve", str)
GRANT = web.RequestKey("grant", Terms)  # what bounds the caller, where something does


class Completions:
    """The handlers of these routes, over the backends there are."""

    # Methods that only called `_handle` would be one more coroutine to go through whenever an answer goes on.
    chat: Callable[[web.Request], Awaitable[web.StreamResponse]]
    text: Callable[[web.Request], Awaitable[web.StreamResponse]]
    decide: Callable[[web.Request], Awaitable[web.StreamResponse]]

    def __init__(
        self,
        steward: Steward,
        backends: Backends,
        intake: Intake,
        config: GatewayConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._steward = steward
        self._backends = backends
        self._config = config
        self._clock = clock
        self._intake = intake
        self._answers = Answers(config.repeat_answers, config.repeat_bytes, config.repeat_s, clock)
        self._answering = Answering(steward, config, self._answers)
        self._running: dict[asyncio.Task[Any], TokenStream] = {}
        self.draining = False
        self._deadlines = Deadlines(clock)
        self.hurried = asyncio.Event()  # nobody wants to wait for the rest of a drain
        self.chat = partial(self._handle, partial(parse_chat, random=random), True)
        self.text = partial(self._handle, partial(parse_completion, random=random), False)
        self.decide = partial(self._handle, partial(parse_decide, random=random), False)

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new and send away what waits; let what runs end until the deadline, then cut it. All of it is
        sealed on return. An engine that does not even stop when it is told to is closed, which ends its serves as
        failed."""
        self.draining = True
        self._backends.close()
        if self._running and deadline_s > 0:
            ended = asyncio.ensure_future(asyncio.wait(set(self._running), timeout=deadline_s))
            hurried = asyncio.ensure_future(self.hurried.wait())
            await asyncio.wait({ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
            for wait in (ended, hurried):
                wait.cancel()
        for sink in self._running.values():
            sink.cut("shutdown")
        if self._running:
            await asyncio.wait(set(self._running), timeout=CUT_S)
        for sink in self._running.values():
            sink.abandon()
        if self._running:
            await asyncio.wait(set(self._running), timeout=_HUNG_S)
        if self._running:
            log.error("serves that were told to end do not (%d): closing the engines", len(self._running))
            await asyncio.gather(*(backend.engine.close() for backend in self._backends.all), return_exceptions=True)
        while self._running:
            await asyncio.wait(set(self._running))
        self._deadlines.close()

    async def _handle(
        self, parse: Callable[[dict[str, Any]], Call], chat: bool, request: web.Request
    ) -> web.StreamResponse:
        if self.draining:
            raise _closing()
        began = self._clock()
        caller, grant = request[CALLER], request.get(GRANT)
        with self._intake.place(request):
            body, call = await self._intake.read(request, parse)
            repeat = self._repeat_key(request, caller, body) if _REPEAT_KEY in request.headers else None
            if repeat is not None and (held := self._answers.get(*repeat)) is not None:
                return held_answer(held)
            deadline = began + min(call.mesh.deadline_s or self._config.deadline_s, self._config.deadline_s)
            placed = await self._backends.place(call, caller, deadline, grant=grant)
            serve = self._start(call, placed, repeat, deadline, chat=chat)
            while True:
                request[SERVE] = serve.headers["Mesh-Serve"]
                try:
                    if serve.begun < call.n:
                        self._spread(serve)
                    again = await self._again(serve, caller, grant)
                    if again is not None:
                        serve = again
                        continue
                    if call.stream:
                        return await self._answering.streamed(request, serve)
                    return await self._answering.plain(serve)
                except asyncio.CancelledError:  # the client is gone
                    serve.abandon()
                    raise
                except MeshError:
                    if serve.over and not serve.settled:
                        del request[SERVE]  # it never began, so nobody should look for its receipt
                    raise

    def _spread(self, serve: Serve) -> None:
        """Begin as many of the other choices as there are slots for."""
        while serve.begun < serve.call.n and serve.placed.backend.room.take():
            self._begin(serve, self._clock())

    async def _again(self, serve: Serve, caller: str, grant: Terms | None) -> Serve | None:
        """Waits until there is something to answer. Where instead the engine failed before the first token of the only
        choice, starts the request on another backend, as a serve of its own with a receipt of its own; None where there
        is no other."""
        leading = serve.choices[0]
        if serve.call.stream:
            serve.first = await leading.sink.take(self._config.keep_alive_s)
            if serve.first is not None:
                return None
            leading.sink.finished()  # with nothing to write, its end waits for nobody
        if serve.call.n > 1:
            return None
        served = await serve.ended(leading)
        if isinstance(served, Repeated) or served.error is None or self.draining or not _failed_early(served):
            return None
        failed = (*serve.failed, served)
        tried = {one.receipt.engine.recipe_id for one in failed}
        others = {backend.name for backend in self._backends.named(serve.call.model)} - tried
        if not others or len(failed) >= self._config.attempts:
            return None
        try:
            placed = await self._backends.place(serve.call, caller, serve.deadline, tried=tried, grant=grant)
        except MeshError as e:
            log.info("no other backend takes over from a failed one: %s", e.code)
            return None
        return self._start(serve.call, placed, serve.repeat, serve.deadline, chat=serve.shape.chat, failed=failed)

    def _repeat_key(self, request: web.Request, caller: str, body: bytes) -> tuple[str, str, bytes]:
        keys = request.headers.getall(_REPEAT_KEY)
        key = keys[0]
        if len(keys) > 1 or not key or len(key) > _MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise BadRequest(
                f"idempotency-key: expected once, of 1 to {_MAX_KEY_CHARS} printable ascii characters",
                code="invalid_value",
                param=_REPEAT_KEY,
            )
        return caller, key, self._steward.mac(request.path.encode() + b"\0" + body)

    def _start(
        self,
        call: Call,
        placed: Placed,
        repeat: tuple[str, str, bytes] | None,
        deadline: float,
        *,
        chat: bool,
        failed: tuple[SealedServe, ...] = (),
    ) -> Serve:
        if self.draining:
            placed.backend.room.leave(self._clock())
            raise _closing()
        text = placed.backend.text
        piece = _no_text if text is None else text.piece
        choices: list[Choice] = []
        for index in range(call.n):
            request = request_of(placed.prepared, index) if index else placed.prepared.request
            sink = TokenStream(piece, request.sampling.stop, streamed=call.stream, scores_wanted=call.logprobs)
            choices.append(Choice(index, request, self._steward.new_serve_id(), sink))
        ids = [serve_id_text(choice.serve_id) for choice in choices]
        shape = shapes.Shape(chat, choices[0].serve_id, call.model, int(time.time()))
        headers = {"Mesh-Serve": ", ".join(ids)}
        serve = Serve(call, placed, shape, headers, piece, choices, repeat, deadline, self._clock, failed)
        self._deadlines.add(serve)
        self._begin(serve, self._clock())
        return serve

    def _begin(self, serve: Serve, entered_s: float) -> None:
        """Serve the next choice, and those that no other slot takes after it, in a slot that was entered then."""
        choice = serve.choices[serve.begun]
        serve.begun += 1
        placed = serve.placed
        task = self._steward.begin(
            placed.admitted if choice.index == 0 else placed.admitted.but(request=choice.request),
            placed.prepared.ids,
            choice.sink,
            serve_id=choice.serve_id,
            idempotency=None if serve.repeat is None else _idempotency(serve, serve.repeat, choice),
            prompt_text=placed.prepared.text,
            options=placed.prepared.options,
        )
        self._running[task] = choice.sink
        task.add_done_callback(partial(self._ended, serve, choice, entered_s))

    def _ended(
        self, serve: Serve, choice: Choice, entered_s: float, task: asyncio.Task[SealedServe | Repeated]
    ) -> None:
        choice.sink.close()
        del self._running[task]
        fault = _hand_over(task, choice)
        if fault is not None:
            serve.drop(fault, OTHER_CHOICE)
        elif serve.begun < serve.call.n and (late := self._too_late(serve)) is not None:
            serve.drop(*late)
        if serve.begun < serve.call.n:
            self._begin(serve, entered_s)
            return
        serve.placed.backend.room.leave(entered_s)
        if serve.over:  # and not where its other choices have slots of their own
            self._deadlines.remove(serve)

    def _too_late(self, serve: Serve) -> tuple[MeshError, str] | None:
        """Why no more choices are begun, and what receipts say of those that run."""
        if self.draining:
            return EngineUnavailable("the server is shutting down; the answer was cut"), "shutdown"
        if self._clock() >= serve.deadline:
            return DeadlineExceeded("the request's time is over; the answer was cut"), "deadline"
        return None


def _closing() -> EngineUnavailable:
    return EngineUnavailable("the server is shutting down")


def _no_text(token: int) -> bytes:
    return b""


def _failed_early(served: SealedServe) -> bool:
    """Whether an engine that failed did so before it made a token, so that another may start afresh."""
    outcome = served.receipt.outcome
    return outcome.finish == "engine-error" and outcome.tokens_out == 0


def _idempotency(serve: Serve, repeat: tuple[str, str, bytes], choice: Choice) -> Idempotency:
    """A client's key is of printable characters, so that those of its other choices are nobody's."""
    _, key, mac = repeat
    after = serve.failed[-1].receipt.serve_id if serve.failed else None
    return Idempotency(key if choice.index == 0 else f"{key}\0{choice.index}", mac, after)


def _hand_over(task: asyncio.Task[SealedServe | Repeated], choice: Choice) -> MeshError | None:
    """What became of a serve, for whoever waits for it; why it is no answer, where it is none."""
    if task.cancelled():
        choice.end(None, asyncio.CancelledError())
        return EngineUnavailable("the serve was cancelled")
    if (error := task.exception()) is not None:
        choice.end(None, error)
        return error if isinstance(error, MeshError) else EngineFailed("internal error")
    served = task.result()
    choice.end(served)
    return None if isinstance(served, Repeated) else fault_of(served)
