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

from mesh.engine.protocol import ServingEngine, TextEngine
from mesh.errors import BadRequest, EngineError, EngineFailed, EngineUnavailable, MeshError
from mesh.gateway import shapes
from mesh.gateway.config import GatewayConfig
from mesh.gateway.events import STREAM_TYPE, EventStream
from mesh.gateway.faults import error_body, headers_of, status_of, told, where
from mesh.gateway.jsonbody import inflate, parse_object
from mesh.gateway.listening import HttpFault, http_fault
from mesh.gateway.openai import Call, parse_chat, parse_completion
from mesh.gateway.preparing import Prepared, choose, prepare
from mesh.gateway.repeats import Answer, Answers
from mesh.gateway.room import Room
from mesh.gateway.sink import TokenStream
from mesh.ledger import Idempotency
from mesh.schema.ids import ContentId, serve_id_text
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Admitted, Steward

log = logging.getLogger("mesh.gateway")

OFF_LOOP_BYTES = 64 * 1024  # bodies from here on are parsed in a thread
JSON_TYPE = "application/json"
_MAX_KEY_CHARS = 255
_CUT_S = 5.0  # after the cut at shutdown, how long a client may take to read the rest
_HUNG_S = 10.0  # and how long after that an engine may take to notice that nobody wants more

# What a handler tells the access log.
CALLER = web.RequestKey("caller", str)
SERVE = web.RequestKey("serve", str)
ENDED = web.RequestKey("ended", int)  # the status of a stream that was broken off after its 200


@dataclass(slots=True)
class _Serve:
    """A serve on its way, and everything its handler needs to say of it."""

    call: Call
    prepared: Prepared
    shape: shapes.Shape
    sink: TokenStream
    task: asyncio.Task[SealedServe | Repeated]
    repeat: tuple[str, str, bytes] | None  # caller, key and body's keyed hash

    @property
    def headers(self) -> dict[str, str]:
        return {"Mesh-Serve": serve_id_text(self.shape.serve_id)}

    def mesh_object(self, served: SealedServe) -> dict[str, Any]:
        return shapes.mesh_object(
            served,
            incomplete=self.sink.incomplete,
            disclose=self.call.mesh.disclose,
            prompt=self.prepared.text,
        )


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
        self._running: dict[asyncio.Task[Any], TokenStream] = {}
        self.draining = False

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_chat, chat=True)

    async def text(self, request: web.Request) -> web.StreamResponse:
        return await self._handle(request, parse_completion, chat=False)

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new; let what runs end until the deadline, then cut it. All of it is sealed on return. An engine
        that does not even stop when it is told to is closed, which ends its serves as failed."""
        self.draining = True
        if self._running and deadline_s > 0:
            await asyncio.wait(set(self._running), timeout=deadline_s)
        for sink in self._running.values():
            sink.cancelled.set()
        if self._running:
            await asyncio.wait(set(self._running), timeout=_CUT_S)
        for sink in self._running.values():
            sink.abandon()
        if self._running:
            await asyncio.wait(set(self._running), timeout=_HUNG_S)
        if self._running:
            log.error("serves that were told to end do not (%d): closing the engines", len(self._running))
            await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        while self._running:
            await asyncio.wait(set(self._running))

    async def _handle(self, request: web.Request, parse: Callable[..., Call], *, chat: bool) -> web.StreamResponse:
        self._check_open()
        caller = request[CALLER]
        body, call = await self._read(request, parse)
        repeat = self._repeat_key(request, caller, body)
        if repeat is not None and (held := self._answers.get(*repeat)) is not None:
            return _held_answer(held)
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
        request[SERVE] = serve_id_text(serve.shape.serve_id)
        try:
            if call.stream:
                return await self._streamed(request, serve)
            return await self._plain(serve)
        except asyncio.CancelledError:  # the client is gone
            serve.sink.abandon()
            raise
        except MeshError:
            if not serve.sink.settled:
                del request[SERVE]  # it never began, so nobody should look for its receipt
            raise

    def _check_open(self) -> None:
        if self.draining:
            raise EngineUnavailable("the server is shutting down")

    async def _read(self, request: web.Request, parse: Callable[..., Call]) -> tuple[bytes, Call]:
        """The body and what it asks for. JSON has to be called JSON: a web page of another origin can send anything
        else without the browser asking first."""
        if request.content_type != JSON_TYPE:
            raise BadRequest(f"content-type: expected {JSON_TYPE}", code="unsupported_media_type")
        data = await self._body(request)
        encoding = ", ".join(request.headers.getall("Content-Encoding", ())) or None

        def read() -> tuple[bytes, Call]:
            body = inflate(data, encoding, max_bytes=self._config.max_body_bytes)
            return body, parse(parse_object(body), self._random)

        if encoding is None and len(data) < OFF_LOOP_BYTES:
            return read()
        return await asyncio.to_thread(read)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                return await request.read()
        except TimeoutError:
            raise BadRequest("body: not complete in time", code="body_timeout") from None
        except HttpFault as e:
            raise BadRequest(f"body: {http_fault(e)}", code="malformed_body") from None

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
        prepared: Prepared,
        admitted: Admitted,
        repeat: tuple[str, str, bytes] | None,
        room: Room,
        *,
        chat: bool,
    ) -> _Serve:
        engine = admitted.engine
        piece = engine.piece if isinstance(engine, TextEngine) else lambda token: b""
        sink = TokenStream(piece, prepared.request.sampling.stop, streamed=call.stream)
        serve_id = self._steward.new_serve_id()
        started = self._clock()
        task = asyncio.ensure_future(
            self._steward.serve(
                admitted,
                prepared.ids,
                sink,
                serve_id=serve_id,
                idempotency=None if repeat is None else Idempotency(repeat[1], repeat[2]),
                prompt_text=prepared.text,
            )
        )
        self._running[task] = sink

        def ended(task: asyncio.Task[Any]) -> None:
            sink.close()
            room.leave(started)
            del self._running[task]
            if not task.cancelled():
                task.exception()  # a handler that is gone asks for it no more

        task.add_done_callback(ended)
        shape = shapes.Shape(chat, serve_id, call.model, int(time.time()))
        return _Serve(call, prepared, shape, sink, task, repeat)

    async def _plain(self, serve: _Serve) -> web.Response:
        served = await asyncio.shield(serve.task)
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
        first = await serve.sink.take(self._config.keep_alive_s)
        if first is None:
            # it ended without text: a refusal before the intent still has a status of its own
            served = await asyncio.shield(serve.task)
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
                first = await serve.sink.take(self._config.keep_alive_s)
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

    async def _finish(self, stream: EventStream, serve: _Serve) -> None:
        try:
            served = await asyncio.shield(serve.task)
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


def _fault_of(served: SealedServe) -> EngineError | None:
    """Why a sealed serve is no answer; None where it is one."""
    outcome = served.receipt.outcome
    match outcome.finish:
        case "stop" | "length":
            return None
        case "cancelled":
            return EngineUnavailable("the server is shutting down; the answer was cut")
        case _:
            return served.error or EngineFailed(f"the engine broke its promise: {outcome.reason}")


def _failed(fault: EngineError, serve: _Serve, served: SealedServe) -> web.Response:
    headers = {**serve.headers, **headers_of(fault), "Mesh-Receipt": served.sealed.id.text}
    return web.json_response(error_body(fault, **serve.mesh_object(served)), status=status_of(fault), headers=headers)


def _held_answer(held: Answer) -> web.Response:
    headers = {"Mesh-Serve": held.serve_id, "Mesh-Receipt": held.receipt_id, "Idempotency-Replayed": "true"}
    return web.Response(body=held.body, content_type=held.content_type, charset="utf-8", headers=headers)
