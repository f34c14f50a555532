"""One answer, from a request's bytes to its sealed receipt: `/v1/chat/completions` and `/v1/completions`.

The serve runs in a task of its own that outlives its handler: a client that goes away is told to the engine through the
sink, and the receipt is sealed all the same. What is refused before the intent is written has a plain HTTP status; the
first byte of a stream goes out only after that.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mesh.engine.protocol import TextEngine
from mesh.errors import BadRequest, DeadlineExceeded, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway import shapes
from mesh.gateway.backends import Backends, Placed
from mesh.gateway.config import GatewayConfig
from mesh.gateway.events import STREAM_TYPE, EventStream
from mesh.gateway.faults import error_body, headers_of, status_of, told, where
from mesh.gateway.intake import JSON_TYPE, Intake
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.gateway.repeats import Answer, Answers
from mesh.gateway.sink import TokenStream
from mesh.grant.terms import Terms
from mesh.ledger import Idempotency
from mesh.schema.ids import ContentId, serve_id_text
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Steward

log = logging.getLogger("mesh.gateway")

_MAX_KEY_CHARS = 255
_CUT_S = 5.0  # after a cut, how long an engine may take to stop and a client to read the rest
_HUNG_S = 10.0  # and how long after that an engine may take to notice that nobody wants more

# What a handler tells the access log.
CALLER = web.RequestKey("caller", str)
SERVE = web.RequestKey("serve", str)
GRANT = web.RequestKey("grant", Terms)  # what bounds the caller, where something does
ENDED = web.RequestKey("ended", int)  # the status of a stream that was broken off after its 200


@dataclass(slots=True)
class _Serve:
    """A serve on its way, and everything its handler needs to say of it."""

    call: Call
    placed: Placed
    shape: shapes.Shape
    sink: TokenStream
    task: asyncio.Task[SealedServe | Repeated]
    repeat: tuple[str, str, bytes] | None  # caller, key and body's keyed hash
    deadline: float
    failed: tuple[SealedServe, ...]  # on other backends, before any token
    first: str | None = None  # what its stream begins with

    @property
    def headers(self) -> dict[str, str]:
        return {"Mesh-Serve": serve_id_text(self.shape.serve_id)}

    def mesh_object(self, served: SealedServe) -> dict[str, Any]:
        told = shapes.mesh_object(
            served,
            incomplete=self.sink.incomplete,
            disclose=self.call.mesh.disclose,
            prompt=self.placed.prepared.text,
        )
        told["recipe_id"] = served.receipt.engine.recipe_id  # which may be asked for by another name
        if self.failed:
            told["failed_before"] = [
                {"serve_id": serve_id_text(one.receipt.serve_id), "receipt_id": one.sealed.id.text}
                for one in self.failed
            ]
        return told


class Completions:
    """The handlers of both routes, over the backends there are."""

    def __init__(
        self,
        steward: Steward,
        backends: Backends,
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
        self._intake = Intake(config.max_body_bytes, config.body_memory_bytes, config.body_timeout_s)
        self._answers = Answers(config.repeat_answers, config.repeat_bytes, config.repeat_s, clock)
        self._running: dict[asyncio.Task[Any], TokenStream] = {}
        self.draining = False
        self.hurried = asyncio.Event()  # nobody wants to wait for the rest of a drain

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_chat, chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_completion, chat=False)

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
            await asyncio.wait(set(self._running), timeout=_CUT_S)
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
                return _held_answer(held)
            deadline = began + min(call.mesh.deadline_s or self._config.deadline_s, self._config.deadline_s)
            placed = await self._backends.place(call, request[CALLER], deadline, grant=request.get(GRANT))
            serve = self._start(call, placed, repeat, deadline, chat=chat)
            while True:
                request[SERVE] = serve.headers["Mesh-Serve"]
                try:
                    again = await self._again(request, serve)
                    if again is not None:
                        serve = again
                        continue
                    if call.stream:
                        return await self._streamed(request, serve)
                    return await self._plain(serve)
                except asyncio.CancelledError:  # the client is gone
                    serve.sink.abandon()
                    raise
                except MeshError:
                    if serve.task.done() and not serve.sink.settled:
                        del request[SERVE]  # it never began, so nobody should look for its receipt
                    raise

    async def _again(self, request: web.Request, serve: _Serve) -> _Serve | None:
        """Waits until there is something to answer. Where instead the engine failed before its first token, starts the
        request on another backend, as a serve of its own with a receipt of its own; None where there is no other."""
        if serve.call.stream:
            serve.first = await serve.sink.take(self._config.keep_alive_s)
            if serve.first is not None:
                return None
        served = await self._ended(serve)
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

    async def _ended(self, serve: _Serve) -> SealedServe | Repeated:
        """What became of a serve. Raises DeadlineExceeded where it does not end although it was called off: it is
        sealed when it does."""
        await asyncio.wait({serve.task}, timeout=max(serve.deadline + _CUT_S - self._clock(), 0))
        if not serve.task.done():
            serve.sink.abandon()
            raise DeadlineExceeded("the request's time is over and the engine does not stop; once it does it is sealed")
        return serve.task.result()

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
    ) -> _Serve:
        started = self._clock()
        if self.draining:
            placed.backend.room.leave(started)
            self._check_open()
        engine, prepared = placed.engine, placed.prepared
        piece = engine.piece if isinstance(engine, TextEngine) else lambda token: b""
        sink = TokenStream(piece, prepared.request.sampling.stop, streamed=call.stream)
        serve_id = self._steward.new_serve_id()
        after = failed[-1].receipt.serve_id if failed else None
        task = asyncio.ensure_future(
            self._steward.serve(
                placed.admitted,
                prepared.ids,
                sink,
                serve_id=serve_id,
                idempotency=None if repeat is None else Idempotency(repeat[1], repeat[2], after),
                prompt_text=prepared.text,
            )
        )
        self._running[task] = sink
        timer = asyncio.get_running_loop().call_later(max(deadline - started, 0), sink.cut, "deadline")

        def ended(task: asyncio.Task[Any]) -> None:
            timer.cancel()
            sink.close()
            placed.backend.room.leave(started)
            del self._running[task]
            if not task.cancelled():
                task.exception()  # a handler that is gone asks for it no more

        task.add_done_callback(ended)
        shape = shapes.Shape(chat, serve_id, call.model, int(time.time()))
        return _Serve(call, placed, shape, sink, task, repeat, deadline, failed)

    async def _plain(self, serve: _Serve) -> web.Response:
        served = await self._ended(serve)
        if isinstance(served, Repeated):
            return await self._repeated(served, streamed=False)
        if (fault := _fault_of(served)) is not None:
            return _failed(fault, serve, served)
        body = json.dumps(
            serve.shape.answer(serve.sink.whole(), served, serve.mesh_object(served)),
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        self._hold(serve, served, body, JSON_TYPE)
        headers = {**serve.headers, "Mesh-Receipt": served.sealed.id.text}
        return web.Response(body=body, content_type=JSON_TYPE, charset="utf-8", headers=headers)

    async def _streamed(self, request: web.Request, serve: _Serve) -> web.StreamResponse:
        first = serve.first
        if first is None:
            # it ended without text: a refusal before the intent still has a status of its own
            served = await self._ended(serve)
            if isinstance(served, Repeated):
                return await self._repeated(served, streamed=True)
            if (fault := _fault_of(served)) is not None:
                return _failed(fault, serve, served)
        stream = EventStream(request, serve.headers, self._config.write_timeout_s, self._answers.max_bytes)
        try:
            await stream.open()
            if (opening := serve.shape.opening()) is not None:
                await stream.send(shapes.event(opening))
            while first is not None:
                await stream.send(shapes.event(serve.shape.text(first)) if first else shapes.KEEP_ALIVE)
                serve.sink.wrote()
                first = await self._more(serve)
            await self._finish(stream, serve)
        except (ConnectionError, TimeoutError):  # the client is gone, or takes nothing
            request[ENDED] = 499
            serve.sink.abandon()
            stream.abort()
        except Exception as e:  # noqa: BLE001  the headers are out, so that breaking off is all there is left to say
            log.error("unforeseen failure in a stream: %s", where(e))
            request[ENDED] = 500
            serve.sink.abandon()
            stream.abort()
        return stream.response

    async def _more(self, serve: _Serve) -> str | None:
        """The next text; None at the end, also that of the patience with an engine that was called off."""
        left_s = serve.deadline + _CUT_S - self._clock()
        text = await serve.sink.take(max(min(self._config.keep_alive_s, left_s), 0))
        return None if text == "" and serve.deadline + _CUT_S <= self._clock() else text

    async def _finish(self, stream: EventStream, serve: _Serve) -> None:
        try:
            served = await self._ended(serve)
        except MeshError as e:
            if told(e) != str(e):
                log.error("%s: %s", type(e).__name__, e)
            await stream.send(shapes.event(error_body(e, serve_id=serve.headers["Mesh-Serve"])))
            return
        if isinstance(served, Repeated):  # it took longer than a keep-alive to find that out
            await stream.send(shapes.event(await self._first_receipt(served)) + shapes.DONE)
            return
        if (fault := _fault_of(served)) is not None:
            await stream.send(shapes.event(error_body(fault, **serve.mesh_object(served))))
            return
        await stream.send(shapes.event(serve.shape.finish(served, serve.mesh_object(served))))
        if serve.call.include_usage:
            await stream.send(shapes.event(serve.shape.usage(served)))
        await stream.send(shapes.receipt_comment(served))
        await stream.send(shapes.DONE)
        if stream.sent is not None:
            self._hold(serve, served, bytes(stream.sent), STREAM_TYPE)

    def _hold(self, serve: _Serve, served: SealedServe, body: bytes, content_type: str) -> None:
        if serve.repeat is not None:
            answer = Answer(body, content_type, serve.headers["Mesh-Serve"], served.sealed.id.text)
            self._answers.put(*serve.repeat, answer)

    async def _repeated(self, served: Repeated, *, streamed: bool) -> web.Response:
        """The first receipt, where the first answer is gone."""
        told = await self._first_receipt(served)
        headers = {
            "Mesh-Serve": told["mesh"]["serve_id"],
            "Mesh-Receipt": told["mesh"]["receipt_id"],
            "Idempotency-Replayed": "true",
        }
        if not streamed:
            return web.json_response(told, headers=headers)
        body = shapes.event(told) + shapes.DONE
        return web.Response(body=body, content_type=STREAM_TYPE, charset="utf-8", headers=headers)

    async def _first_receipt(self, served: Repeated) -> dict[str, Any]:
        entry = await asyncio.to_thread(self._steward.reader.by_serve, served.serve_id)
        if entry is None:
            raise EngineFailed("the receipt of the first serve cannot be found")
        return shapes.repeated(served.serve_id, ContentId(entry.receipt_id))


def _failed_early(served: SealedServe) -> bool:
    """Whether the engine failed before it made a token, so that another may start afresh."""
    outcome = served.receipt.outcome
    return served.error is not None and outcome.finish == "engine-error" and outcome.tokens_out == 0


def _fault_of(served: SealedServe) -> MeshError | None:
    """Why a sealed serve is no answer; None where it is one."""
    outcome = served.receipt.outcome
    match outcome.finish:
        case "stop" | "length":
            return None
        case "cancelled" if outcome.reason == "deadline":
            return DeadlineExceeded("the request's time is over; the answer was cut")
        case "cancelled":
            return EngineUnavailable("the server is shutting down; the answer was cut")
        case _:
            return served.error or EngineFailed(f"the engine broke its promise: {outcome.reason}")


def _failed(fault: MeshError, serve: _Serve, served: SealedServe) -> web.Response:
    headers = {**serve.headers, **headers_of(fault), "Mesh-Receipt": served.sealed.id.text}
    return web.json_response(error_body(fault, **serve.mesh_object(served)), status=status_of(fault), headers=headers)


def _held_answer(held: Answer) -> web.Response:
    headers = {"Mesh-Serve": held.serve_id, "Mesh-Receipt": held.receipt_id, "Idempotency-Replayed": "true"}
    return web.Response(body=held.body, content_type=held.content_type, charset="utf-8", headers=headers)
