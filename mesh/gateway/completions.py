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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from mesh.engine.protocol import has_text
from mesh.errors import BadRequest, DeadlineExceeded, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway import shapes
from mesh.gateway.answering import Answering, held_answer
from mesh.gateway.backends import Backends, Placed
from mesh.gateway.choices import CUT_S, OTHER_CHOICE, Choice, Outcome, Serve, fault_of, request_of
from mesh.gateway.config import GatewayConfig
from mesh.gateway.deciding import parse_decide
from mesh.gateway.intake import Intake
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.gateway.repeats import Answers
from mesh.gateway.sink import TokenStream
from mesh.grant.terms import Terms
from mesh.ledger import Idempotency
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Steward

log = logging.getLogger("mesh.gateway")

_MAX_KEY_CHARS = 255
_HUNG_S = 10.0  # after a cut and CUT_S, how long an engine may take to notice that nobody wants more

# What a handler tells the access log.
CALLER = web.RequestKey("caller", str)
SERVE = web.RequestKey("serve", str)
GRANT = web.RequestKey("grant", Terms)  # what bounds the caller, where something does


class Completions:
    """The handlers of these routes, over the backends there are."""

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
        self._random = random
        self._intake = intake
        self._answers = Answers(config.repeat_answers, config.repeat_bytes, config.repeat_s, clock)
        self._answering = Answering(steward, config, self._answers)
        self._running: dict[asyncio.Task[Any], TokenStream] = {}
        self.draining = False
        self.hurried = asyncio.Event()  # nobody wants to wait for the rest of a drain

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_chat, chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_completion, chat=False)

    async def decide(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_decide, chat=False)

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

    async def _handle(self, request: web.Request, parse: Callable[..., Call], *, chat: bool) -> web.StreamResponse:
        self._check_open()
        began = self._clock()
        with self._intake.place(request):
            body, call = await self._intake.read(request, lambda body: parse(body, self._random))
            repeat = self._repeat_key(request, request[CALLER], body)
            if repeat is not None and (held := self._answers.get(*repeat)) is not None:
                return held_answer(held)
            deadline = began + min(call.mesh.deadline_s or self._config.deadline_s, self._config.deadline_s)
            placed = await self._backends.place(call, request[CALLER], deadline, grant=request.get(GRANT))
            serve = self._start(call, placed, repeat, deadline, chat=chat)
            while True:
                request[SERVE] = serve.headers["Mesh-Serve"]
                try:
                    await self._spread(request, serve)
                    again = await self._again(request, serve)
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

    async def _spread(self, request: web.Request, serve: Serve) -> None:
        """Begin as many of the other choices as there are slots for."""
        room = serve.placed.backend.room
        while serve.begun < serve.call.n and room.free:
            await room.enter(request[CALLER])  # which does not wait
            self._begin(serve)

    async def _again(self, request: web.Request, serve: Serve) -> Serve | None:
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
        if isinstance(served, Repeated) or not _failed_early(served) or self.draining:
            return None
        failed = (*serve.failed, served)
        tried = {one.receipt.engine.recipe_id for one in failed}
        others = {backend.name for backend in self._backends.named(serve.call.model)} - tried
        if not others or len(failed) >= self._config.attempts:
            return None
        try:
            placed = await self._backends.place(
                serve.call, request[CALLER], serve.deadline, tried=tried, grant=request.get(GRANT)
            )
        except MeshError as e:
            log.info("no other backend takes over from a failed one: %s", e.code)
            return None
        return self._start(serve.call, placed, serve.repeat, serve.deadline, chat=serve.shape.chat, failed=failed)

    def _check_open(self) -> None:
        if self.draining:
            raise EngineUnavailable("the server is shutting down")

    def _repeat_key(self, request: web.Request, caller: str, body: bytes) -> tuple[str, str, bytes] | None:
        keys = request.headers.getall("Idempotency-Key", ())
        if not keys:
            return None
        key = keys[0]
        if len(keys) > 1 or not key or len(key) > _MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise BadRequest(
                f"idempotency-key: expected once, of 1 to {_MAX_KEY_CHARS} printable ascii characters",
                code="invalid_value",
                param="Idempotency-Key",
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
            self._check_open()
        engine = placed.engine
        piece = engine.piece if has_text(engine) else lambda token: b""
        choices = [self._choice(call, placed, piece, index) for index in range(call.n)]
        shape = shapes.Shape(chat, choices[0].serve_id, call.model, int(time.time()))
        serve = Serve(call, placed, shape, piece, choices, repeat, deadline, self._clock, failed)
        self._begin(serve)
        return serve

    def _choice(self, call: Call, placed: Placed, piece: Callable[[int], bytes], index: int) -> Choice:
        request = request_of(placed.prepared, index)
        sink = TokenStream(piece, request.sampling.stop, streamed=call.stream, scores_wanted=call.logprobs)
        outcome: Outcome = asyncio.get_running_loop().create_future()
        return Choice(index, request, self._steward.new_serve_id(), sink, outcome)

    def _begin(self, serve: Serve) -> None:
        """Serve the next choice, and those that no other slot takes after it, in a slot that was entered."""
        self._follow(serve, self._clock())

    def _follow(self, serve: Serve, entered_s: float) -> bool:
        """Serve the next choice in the slot; False where all have begun."""
        choice = serve.following()
        if choice is None:
            return False
        placed = serve.placed
        task = self._steward.begin(
            placed.admitted if choice.index == 0 else replace(placed.admitted, request=choice.request),
            placed.prepared.ids,
            choice.sink,
            serve_id=choice.serve_id,
            idempotency=_idempotency(serve, choice),
            prompt_text=placed.prepared.text,
            options=placed.prepared.options,
        )
        self._running[task] = choice.sink
        task.add_done_callback(partial(self._ended, serve, choice, entered_s))
        return True

    def _ended(
        self, serve: Serve, choice: Choice, entered_s: float, task: asyncio.Task[SealedServe | Repeated]
    ) -> None:
        choice.sink.close()
        del self._running[task]
        fault = _hand_over(task, choice.outcome)
        if fault is not None:
            serve.drop(fault, OTHER_CHOICE)
        elif serve.begun < len(serve.choices) and (late := self._too_late(serve)) is not None:
            serve.drop(*late)
        if not self._follow(serve, entered_s):
            serve.placed.backend.room.leave(entered_s)

    def _too_late(self, serve: Serve) -> tuple[MeshError, str] | None:
        """Why no more choices are begun, and what receipts say of those that run."""
        if self.draining:
            return EngineUnavailable("the server is shutting down; the answer was cut"), "shutdown"
        if self._clock() >= serve.deadline:
            return DeadlineExceeded("the request's time is over; the answer was cut"), "deadline"
        return None


def _failed_early(served: SealedServe) -> bool:
    """Whether the engine failed before it made a token, so that another may start afresh."""
    outcome = served.receipt.outcome
    return served.error is not None and outcome.finish == "engine-error" and outcome.tokens_out == 0


def _idempotency(serve: Serve, choice: Choice) -> Idempotency | None:
    """A client's key is of printable characters, so that those of its other choices are nobody's."""
    if serve.repeat is None:
        return None
    _, key, mac = serve.repeat
    after = serve.failed[-1].receipt.serve_id if serve.failed else None
    return Idempotency(key if choice.index == 0 else f"{key}\0{choice.index}", mac, after)


def _hand_over(task: asyncio.Task[SealedServe | Repeated], outcome: Outcome) -> MeshError | None:
    """What became of a serve, for whoever waits for it; why it is no answer, where it is none."""
    if task.cancelled():
        outcome.cancel()
        return EngineUnavailable("the serve was cancelled")
    if (error := task.exception()) is not None:
        outcome.set_exception(error)
        outcome.exception()  # a handler that is gone asks for it no more
        return error if isinstance(error, MeshError) else EngineFailed("internal error")
    served = task.result()
    outcome.set_result(served)
    return None if isinstance(served, Repeated) else fault_of(served)
