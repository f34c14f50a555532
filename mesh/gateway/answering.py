"""What a client gets of its serves: one body, or a stream whose finish chunks wait for the seals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from mesh.errors import EngineFailed, MeshError
from mesh.gateway import shapes
from mesh.gateway.choices import OTHER_CHOICE, Choice, Serve, fault_of
from mesh.gateway.config import GatewayConfig
from mesh.gateway.deciding import told_of
from mesh.gateway.energy import energy_comment, energy_object
from mesh.gateway.events import STREAM_TYPE, EventStream
from mesh.gateway.faults import error_body, headers_of, status_of, told, where
from mesh.gateway.front import Whole
from mesh.gateway.intake import JSON_TYPE
from mesh.gateway.logprobs import Entry, chat_logprobs, text_logprobs
from mesh.gateway.repeats import Answer, Answers
from mesh.gateway.sink import Part
from mesh.gateway.toolcalls import Delta, Reader, reader_of
from mesh.schema.ids import ContentId, serve_id_text
from mesh.schema.view import json_bytes
from mesh.steward.serves import Repeated, SealedServe
from mesh.steward.steward import Steward

log = logging.getLogger("mesh.gateway")

# What the access log is told: the status of a stream that was broken off after its 200.
ENDED = web.RequestKey("ended", int)


class Answering:
    """Writes answers of serves that have begun. `answers` holds what an idempotency key may repeat."""

    def __init__(self, steward: Steward, config: GatewayConfig, answers: Answers) -> None:
        self._steward = steward
        self._config = config
        self._answers = answers

    async def plain(self, serve: Serve) -> web.Response:
        """Raises the MeshError of a serve that never began."""
        outcomes: list[SealedServe | Repeated] = []
        errors: list[Exception] = []
        for choice in serve.choices:
            try:
                outcomes.append(await serve.ended(choice))
            except Exception as e:  # noqa: BLE001  raised below, once it is known what became of the others
                errors.append(e)
        served = [outcome for outcome in outcomes if isinstance(outcome, SealedServe)]
        if (fault := _first_fault(served)) is not None and not (errors and _only_stopped(served)):
            return _failed(fault, serve, served)
        if errors:
            raise errors[0]
        if len(served) < len(outcomes):
            return await self._repeated(outcomes, streamed=False)
        if serve.call.options:
            told = told_of(serve.call.options, serve.prepared.options, served[0])
            answer = serve.shape.decision(told, served, energy_object(served), _mesh_object(serve, served))
            return self._whole(serve, served, answer)
        said = []
        for choice, one in zip(serve.choices, served, strict=True):
            part = choice.sink.whole()
            reader = _reader(serve, choice)
            deltas = None if reader is None else [*reader.push(part.text), *reader.finish()]
            reason = shapes.finish_reason(one, 0 if reader is None else reader.calls)
            await _judge(serve, choice, part.text, one, 0 if reader is None else reader.calls)
            whole = serve.shape.whole(part.text, deltas)
            said.append(serve.shape.choice(choice.index, whole, _logprobs(serve, part.entries), reason))
        answer = serve.shape.answer(said, served, energy_object(served), _mesh_object(serve, served))
        return self._whole(serve, served, answer)

    def _whole(self, serve: Serve, served: Sequence[SealedServe], answer: dict[str, Any]) -> web.Response:
        body = json_bytes(answer)
        self._hold(serve, served, body, JSON_TYPE)
        headers = {**serve.headers, "Mesh-Receipt": _receipts(served)}
        return Whole(body, JSON_TYPE, headers)

    async def streamed(self, request: web.Request, serve: Serve) -> web.StreamResponse:
        """From its first part on. Raises the MeshError of a serve that never began, while nothing has been sent."""
        if serve.first is None:
            # it ended without text: a refusal before the intent still has a status of its own
            served = await serve.ended(serve.choices[0])
            if isinstance(served, Repeated):
                return await self._repeated([served], streamed=True)
            if (fault := fault_of(served)) is not None:
                serve.drop(fault, OTHER_CHOICE)
                return _failed(fault, serve, [served])
        stream = EventStream(request, serve.headers, self._config.write_timeout_s, self._answers.max_bytes)
        try:
            await stream.open()
            await self._write(stream, serve)
        except (ConnectionError, TimeoutError):  # the client is gone, or takes nothing
            request[ENDED] = 499
            serve.abandon()
            stream.abort()
        except Exception as e:  # noqa: BLE001  the headers are out, so that breaking off is all there is left to say
            log.error("unforeseen failure in a stream: %s", where(e))
            request[ENDED] = 500
            serve.abandon()
            stream.abort()
        finally:
            stream.close()
        return stream.response

    async def _write(self, stream: EventStream, serve: Serve) -> None:
        leading, *others = serve.choices
        finish = b""
        try:
            if others:
                served = await self._together(stream, serve)
            else:
                sealed, finish = await self._choice(stream, serve, leading, serve.first)
                served = [sealed]
        except _BrokenOff as e:
            serve.abandon()
            await stream.end(shapes.event(e.told) + (shapes.DONE if e.whole else b""))
            return
        usage = shapes.event(serve.shape.usage(served)) if serve.call.include_usage else b""
        comments = b"".join(map(shapes.receipt_comment, served)) + energy_comment(served)
        await stream.end(finish + usage + comments + shapes.DONE)
        if stream.sent is not None:
            self._hold(serve, served, bytes(stream.sent), STREAM_TYPE)

    async def _together(self, stream: EventStream, serve: Serve) -> list[SealedServe]:
        """All choices at once, each chunk with its index. The first to break off ends all."""

        async def follow(choice: Choice, part: Part | None) -> SealedServe:
            served, finish = await self._choice(stream, serve, choice, part)
            await stream.send(finish)
            return served

        async def begin(choice: Choice) -> SealedServe:
            return await follow(choice, await serve.more(choice, self._config.keep_alive_s))

        leading, *others = serve.choices
        writers = [asyncio.ensure_future(follow(leading, serve.first))]
        writers += [asyncio.ensure_future(begin(choice)) for choice in others]
        try:
            return list(await asyncio.gather(*writers))
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _choice(
        self, stream: EventStream, serve: Serve, choice: Choice, part: Part | None
    ) -> tuple[SealedServe, bytes]:
        """One choice, all but its finish chunk, which is returned; `part` is its first. Raises _BrokenOff where there
        will be none."""
        shape, sink = serve.shape, choice.sink
        if (opening := shape.opening(choice.index)) is not None:
            await stream.send(shapes.event(opening))
        reader = _reader(serve, choice)
        text_event = shape.texts(choice.index)
        entries: list[Entry] = []  # of text that is held
        said: list[str] = []  # of an answer that is to be judged
        while part is not None:
            if serve.prepared.form is not None:
                said.append(part.text)
            if reader is not None:
                entries += part.entries
                deltas = reader.push(part.text)
                entries = await _say(stream, serve, choice, deltas, entries)
                if not deltas and stream.quiet_s >= self._config.keep_alive_s:
                    await stream.send(shapes.KEEP_ALIVE)
            elif part.text and serve.call.logprobs is None:
                await stream.send(text_event(part.text))
            elif part.text or part.entries:
                chunk = shape.text(choice.index, part.text, _logprobs(serve, part.entries))
                await stream.send(shapes.event(chunk))
            else:
                await stream.send(shapes.KEEP_ALIVE)
            if reader is None or not reader.holding:
                sink.wrote()
            part = await serve.more(choice, self._config.keep_alive_s)
        if reader is not None:
            deltas = reader.finish() or ([{"content": ""}] if entries else [])
            await _say(stream, serve, choice, deltas, entries)
            sink.wrote()
        sink.finished()
        try:
            served = await serve.ended(choice)
        except MeshError as e:
            if told(e) != str(e):
                log.error("%s: %s", type(e).__name__, e)
            raise _BrokenOff(error_body(e, serve_id=serve.headers["Mesh-Serve"])) from e
        if isinstance(served, Repeated):  # it took longer than a keep-alive to find that out
            raise _BrokenOff(await self._first_receipts([served]), whole=True)
        if (fault := fault_of(served)) is not None:
            raise _BrokenOff(error_body(fault, **_mesh_object(serve, [served])))
        await _judge(serve, choice, "".join(said), served, 0 if reader is None else reader.calls)
        mesh = _told_of(serve, choice, served)
        if len(serve.choices) > 1:
            mesh["index"] = choice.index
        reason = shapes.finish_reason(served, 0 if reader is None else reader.calls)
        return served, shapes.event(shape.finish(choice.index, reason, mesh))

    def _hold(self, serve: Serve, served: Sequence[SealedServe], body: bytes, content_type: str) -> None:
        if serve.repeat is not None:
            answer = Answer(body, content_type, serve.headers["Mesh-Serve"], _receipts(served))
            self._answers.put(*serve.repeat, answer)

    async def _repeated(self, outcomes: Sequence[SealedServe | Repeated], *, streamed: bool) -> web.Response:
        """The first receipts, where the first answer is gone."""
        receipts = await self._first_receipts(outcomes)
        of_each = receipts["mesh"].get("choices", [receipts["mesh"]])
        headers = {
            "Mesh-Serve": ", ".join(mesh["serve_id"] for mesh in of_each),
            "Mesh-Receipt": ", ".join(mesh["receipt_id"] for mesh in of_each),
            "Idempotency-Replayed": "true",
        }
        if not streamed:
            return web.json_response(receipts, headers=headers)
        body = shapes.event(receipts) + shapes.DONE
        return web.Response(body=body, content_type=STREAM_TYPE, charset="utf-8", headers=headers)

    async def _first_receipts(self, outcomes: Sequence[SealedServe | Repeated]) -> dict[str, Any]:
        receipts = []
        for outcome in outcomes:
            if isinstance(outcome, SealedServe):
                receipts.append((outcome.receipt.serve_id, outcome.receipt_id))
                continue
            entry = await asyncio.to_thread(self._steward.reader.by_serve, outcome.serve_id)
            if entry is None:
                raise EngineFailed("the receipt of the first serve cannot be found")
            receipts.append((outcome.serve_id, ContentId(entry.receipt_id)))
        return shapes.repeated(receipts)


class _BrokenOff(Exception):
    """A stream that ends without an answer. `told` is its last event; `whole` where that is all there is to say."""

    def __init__(self, told: dict[str, Any], *, whole: bool = False) -> None:
        super().__init__()
        self.told, self.whole = told, whole


def held_answer(held: Answer) -> web.Response:
    headers = {"Mesh-Serve": held.serve_id, "Mesh-Receipt": held.receipt_id, "Idempotency-Replayed": "true"}
    return web.Response(body=held.body, content_type=held.content_type, charset="utf-8", headers=headers)


def _reader(serve: Serve, choice: Choice) -> Reader | None:
    """What finds calls in a choice; None where no tools are there to be called."""
    form = serve.prepared.tool_form
    if form is None:
        return None
    names = {tool["function"]["name"] for tool in serve.call.tools}
    return reader_of(form, names, f"call_{choice.serve_id.hex()}_")


async def _say(
    stream: EventStream, serve: Serve, choice: Choice, deltas: Sequence[Delta], entries: list[Entry]
) -> list[Entry]:
    """Send deltas, the first one with all `entries`; returns those that found no delta to go with."""
    for delta in deltas:
        await stream.send(shapes.event(serve.shape.delta(choice.index, delta, _logprobs(serve, entries))))
        entries = []
    return entries


def _logprobs(serve: Serve, entries: Sequence[Entry]) -> dict[str, Any] | None:
    if serve.call.logprobs is None:
        return None
    return (chat_logprobs if serve.shape.chat else text_logprobs)(entries, serve.piece)


async def _judge(serve: Serve, choice: Choice, text: str, served: SealedServe, calls: int) -> None:
    """Say of a whole answer whether it is what the request has to have."""
    form = serve.prepared.form
    if form is None:
        return
    cut = served.receipt.outcome.finish == "length"
    if form.free:
        choice.verdict = "not satisfied (truncated)" if cut else "satisfied"
    elif form.schema is None:
        choice.verdict = "satisfied" if calls else "not satisfied (truncated)" if cut else "not satisfied"
    else:
        choice.verdict = await asyncio.to_thread(form.verdict, text, cut=cut)


def _told_of(serve: Serve, choice: Choice, served: SealedServe) -> dict[str, Any]:
    mesh = shapes.mesh_object(
        served, incomplete=choice.sink.incomplete, disclose=serve.call.mesh.disclose, prompt=serve.prepared.text
    )
    mesh["recipe_id"] = served.receipt.engine.recipe_id  # which may be asked for by another name
    if serve.failed:
        mesh["failed_before"] = [
            {"serve_id": serve_id_text(one.receipt.serve_id), "receipt_id": one.receipt_id.text} for one in serve.failed
        ]
    grammar, form = served.request.sampling.grammar, serve.prepared.form
    if grammar is not None and form is not None:
        mesh["grammar"] = ContentId(grammar).text
        if serve.call.mesh.disclose:
            mesh["grammar_text"] = form.grammar  # what a replayer has to tell its engine
        if choice.verdict is not None:
            mesh["format"] = choice.verdict
    if serve.call.logprobs is not None:
        mesh["logprobs"] = "raw"  # from before biases, penalties, temperature and cuts
    return mesh


def _mesh_object(serve: Serve, served: Sequence[SealedServe]) -> dict[str, Any]:
    """The `mesh` object of an answer: of its one serve, or of each by index."""
    by_id = {one.receipt.serve_id: one for one in served}
    of_each = [
        {"index": choice.index} | _told_of(serve, choice, by_id[choice.serve_id])
        for choice in serve.choices
        if choice.serve_id in by_id
    ]
    if len(serve.choices) > 1:
        return {"choices": of_each}
    del of_each[0]["index"]
    return of_each[0]


def _receipts(served: Sequence[SealedServe]) -> str:
    return ", ".join(one.receipt_id.text for one in served)


def _first_fault(served: Sequence[SealedServe]) -> MeshError | None:
    """The fault that the others were stopped for, where one was."""
    faulty = [(one.receipt.outcome.reason == OTHER_CHOICE, fault) for one in served if (fault := fault_of(one))]
    return min(faulty, key=lambda one: one[0])[1] if faulty else None


def _only_stopped(served: Sequence[SealedServe]) -> bool:
    """Whether what is no answer was stopped for the sake of one that is not among them."""
    return all(fault_of(one) is None or one.receipt.outcome.reason == OTHER_CHOICE for one in served)


def _failed(fault: MeshError, serve: Serve, served: Sequence[SealedServe]) -> web.Response:
    headers = {**serve.headers, **headers_of(fault), "Mesh-Receipt": _receipts(served)}
    body = error_body(fault, **_mesh_object(serve, served))
    return web.json_response(body, status=status_of(fault), headers=headers)
