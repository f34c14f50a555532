"""One answer, from a request's bytes to its sealed receipt: `/v1/chat/completions` and `/v1/completions`.

The serve runs in a task of its own that outlives its handler: a client that goes away is told to the engine through the
sink, and the receipt is sealed all the same. What is refused before the intent is written has a plain HTTP status; the
first byte of a stream goes out only after that.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from mesh.engine.protocol import ServingEngine, TextEngine
from mesh.errors import BadRequest, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway import shapes
from mesh.gateway.answering import Answering, held_answer
from mesh.gateway.bodies import read_body
from mesh.gateway.choices import Choice, Outcome, Serve, fault_of, request_of
from mesh.gateway.config import GatewayConfig
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.gateway.preparing import Prepared, choose, prepare
from mesh.gateway.repeats import Answers
from mesh.gateway.room import Room
from mesh.gateway.sink import TokenStream
from mesh.ledger import Idempotency
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Admitted, Steward

_MAX_KEY_CHARS = 255
_CUT_S = 5.0  # after the cut at shutdown, how long a client may take to read the rest

# What a handler tells the access log.
CALLER = web.RequestKey("caller", str)
SERVE = web.RequestKey("serve", str)


class Completions:
    """The handlers of both routes, over the engines there are."""

    def __init__(
        self,
        steward: Steward,
        engines: list[ServingEngine],
        config: GatewayConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._steward = steward
        self._engines = engines
        self._config = config
        self._clock = clock
        self._random = random
        self._rooms = {
            engine.recipe_id: Room(engine.slots, config.queue, config.queue_wait_s, clock) for engine in engines
        }
        self._answers = Answers(config.repeat_answers, config.repeat_bytes, config.repeat_s, clock)
        self._answering = Answering(steward, config, self._answers)
        self._running: dict[asyncio.Task[Any], TokenStream] = {}
        self.draining = False

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_chat, chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_completion, chat=False)

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new; let what runs end until the deadline, then cut it. All of it is sealed on return."""
        self.draining = True
        if self._running and deadline_s > 0:
            await asyncio.wait(set(self._running), timeout=deadline_s)
        for sink in self._running.values():
            sink.cancelled.set()
        if self._running:
            await asyncio.wait(set(self._running), timeout=_CUT_S)
        for sink in self._running.values():
            sink.abandon()
        while self._running:
            await asyncio.wait(set(self._running))

    async def _handle(self, request: web.Request, parse: Callable[..., Call], *, chat: bool) -> web.StreamResponse:
        self._check_open()
        caller = request[CALLER]
        body, call = await read_body(request, self._config, lambda body: parse(body, self._random))
        repeat = self._repeat_key(request, caller, body)
        if repeat is not None and (held := self._answers.get(*repeat)) is not None:
            return held_answer(held)
        engine = choose(self._engines, call.model)
        room = self._rooms[engine.recipe_id]
        if room.full:  # said before the work of tokenizing
            raise room.overloaded()
        prepared = await prepare(call, engine, default_max_tokens=self._config.default_max_tokens)
        admitted = await self._steward.admit(prepared.request, [engine], caller=caller)
        if await room.enter():
            try:
                # while this one waited, the engine may have gone
                self._check_open()
                admitted = await self._steward.admit(prepared.request, [engine], caller=caller)
            except BaseException:
                room.leave(self._clock())
                raise
        serve = self._start(call, prepared, admitted, repeat, room, chat=chat)
        request[SERVE] = serve.headers["Mesh-Serve"]
        while serve.begun < call.n and room.free:
            await room.enter()  # which does not wait
            self._begin(serve, admitted, room)
        try:
            if call.stream:
                return await self._answering.streamed(request, serve)
            return await self._answering.plain(serve)
        except asyncio.CancelledError:  # the client is gone
            serve.abandon()
            raise
        except MeshError:
            if not serve.settled:
                del request[SERVE]  # it never began, so nobody should look for its receipt
            raise

    def _check_open(self) -> None:
        if self.draining:
            raise EngineUnavailable("the server is shutting down")

    def _repeat_key(self, request: web.Request, caller: str, body: bytes) -> tuple[str, str, bytes] | None:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return None
        if not key or len(key) > _MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            raise BadRequest(
                f"idempotency-key: expected 1 to {_MAX_KEY_CHARS} printable ascii characters",
                code="invalid_value",
                param="Idempotency-Key",
            )
        return caller, key, self._steward.mac(request.path.encode() + b"\0" + body)

    def _start(
        self,
        call: Call,
        prepared: Prepared,
        admitted: Admitted,
        repeat: tuple[str, str, bytes] | None,
        room: Room,
        *,
        chat: bool,
    ) -> Serve:
        engine = admitted.engine
        piece = engine.piece if isinstance(engine, TextEngine) else lambda token: b""
        choices = [self._choice(call, prepared, piece, index) for index in range(call.n)]
        shape = shapes.Shape(chat, choices[0].serve_id, call.model, int(time.time()))
        serve = Serve(call, prepared, shape, piece, choices, repeat)
        self._begin(serve, admitted, room)
        return serve

    def _choice(self, call: Call, prepared: Prepared, piece: Callable[[int], bytes], index: int) -> Choice:
        request = request_of(prepared, index)
        sink = TokenStream(piece, request.sampling.stop, streamed=call.stream, scores_wanted=call.logprobs)
        outcome: Outcome = asyncio.get_running_loop().create_future()
        return Choice(index, request, self._steward.new_serve_id(), sink, outcome)

    def _begin(self, serve: Serve, admitted: Admitted, room: Room) -> None:
        """Serve the next choice, and those that no other slot takes after it, in a slot that was entered."""
        choice = serve.following()
        if choice is None:
            return
        started = self._clock()

        def run(choice: Choice) -> None:
            task = asyncio.ensure_future(
                self._steward.serve(
                    replace(admitted, request=choice.request),
                    serve.prepared.ids,
                    choice.sink,
                    serve_id=choice.serve_id,
                    idempotency=_idempotency(serve, choice),
                    prompt_text=serve.prepared.text,
                )
            )
            self._running[task] = choice.sink
            task.add_done_callback(lambda task: ended(choice, task))

        def ended(choice: Choice, task: asyncio.Task[SealedServe | Repeated]) -> None:
            choice.sink.close()
            del self._running[task]
            fault = _hand_over(task, choice.outcome)
            if fault is not None:
                serve.drop(fault)
            elif self.draining:
                serve.drop(EngineUnavailable("the server is shutting down; the answer was cut"))
            following = serve.following()
            if following is None:
                room.leave(started)
            else:
                run(following)

        run(choice)


def _idempotency(serve: Serve, choice: Choice) -> Idempotency | None:
    """A client's key is of printable characters, so that those of its other choices are nobody's."""
    if serve.repeat is None:
        return None
    _, key, mac = serve.repeat
    return Idempotency(key if choice.index == 0 else f"{key}\0{choice.index}", mac)


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
