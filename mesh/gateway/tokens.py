"""`/tokenize` and `/detokenize` in the two shapes that clients know.

A llama-server client sends `content` and reads `tokens`, and back `content`; a vLLM client sends `prompt` or `messages`
and reads `tokens`, `count` and `max_model_len`, and back `prompt`. Which one speaks is seen from what it sends. `model`
may be left out where one is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mesh.engine.protocol import ServingEngine, TextEngine
from mesh.errors import BadRequest
from mesh.gateway.backends import Backends
from mesh.gateway.completions import GRANT
from mesh.gateway.fields import Fields
from mesh.gateway.intake import Intake
from mesh.gateway.messages import Message, read_messages
from mesh.schema.limits import MAX_TOKEN_ID


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Exactly one of `content`, `prompt` and `messages` is there. `special`: control tokens spelled in the text count
    as such; `bare`: nothing is put in front of it."""

    model: str | None
    content: str | None
    prompt: str | None
    messages: tuple[Message, ...] | None
    special: bool
    bare: bool
    pieces: bool


@dataclass(frozen=True, slots=True)
class Detokenize:
    model: str | None
    tokens: tuple[int, ...]


class Tokens:
    """The handlers, over the backends there are. A grant is asked as for a serve, and nothing is drawn of it."""

    def __init__(self, backends: Backends, intake: Intake) -> None:
        self._backends = backends
        self._intake = intake

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/detokenize", self.detokenize)]

    async def tokenize(self, request: web.Request) -> web.Response:
        with self._intake.place(request):
            _, call = await self._intake.read(request, parse_tokenize)
            engine, writer = self._writer(request, call.model)
            ids = await _ids(call, writer)
        if call.content is None:
            told: dict[str, Any] = {"count": len(ids), "max_model_len": engine.context_tokens, "tokens": ids}
            told["token_strs"] = [_shown(writer.piece(token)) for token in ids] if call.pieces else None
        elif call.pieces:
            told = {"tokens": [{"id": token, "piece": _piece(writer.piece(token))} for token in ids]}
        else:
            told = {"tokens": ids}
        return web.json_response(told)

    async def detokenize(self, request: web.Request) -> web.Response:
        with self._intake.place(request):
            _, call = await self._intake.read(request, parse_detokenize)
            _, writer = self._writer(request, call.model)
            text = _shown(b"".join(map(writer.piece, call.tokens)))
        return web.json_response({"content": text, "prompt": text})

    def _writer(self, request: web.Request, model: str | None) -> tuple[ServingEngine, TextEngine]:
        """The first of the backends that answer to `model` and have a vocabulary."""
        if model is None:
            if len(self._backends.all) != 1:
                raise BadRequest("model: missing, and several are served", code="invalid_value", param="model")
            model = self._backends.all[0].name
        for backend in self._backends.within(model, request.get(GRANT)):
            engine = backend.engine
            if isinstance(engine, TextEngine):
                return engine, engine
        raise BadRequest("this model takes token ids only", code="text_unsupported", param="model")


async def _ids(call: Tokenize, writer: TextEngine) -> list[int]:
    if call.messages is not None:
        return await writer.encode(await writer.render(call.messages), special=True)
    text = call.prompt if call.content is None else call.content
    assert text is not None
    # named only where it is asked for: it is the exception
    bare = {"bare": True} if call.bare else {}
    return await writer.encode(text, special=call.special, **bare)


def parse_tokenize(body: dict[str, Any]) -> Tokenize:
    """Raises BadRequest with the field's name as `param`."""
    fields = Fields(body)
    given = [name for name in ("content", "prompt", "messages") if name in fields]
    if len(given) != 1:
        fault = "missing" if not given else f"not beside {given[0]}"
        raise fields.fault(given[-1] if given else "content", f"{fault}; expected one of content, prompt and messages")
    (form,) = given
    model = fields.text("model")
    content, prompt, messages = fields.text("content"), fields.text("prompt"), None
    if form == "content":
        special = _or(fields.flag("parse_special"), True)
        bare = not _or(fields.flag("add_special"), False)
        pieces = _or(fields.flag("with_pieces"), False)
    elif form == "prompt":
        special, bare = False, not _or(fields.flag("add_special_tokens"), True)
        pieces = _or(fields.flag("return_token_strs"), False)
    else:
        messages, special, bare = read_messages(fields), True, False
        fields.only("add_generation_prompt", (True,), "a prompt ends where the assistant speaks")
        fields.only("continue_final_message", (False,), "a prompt ends where the assistant speaks")
        fields.only("add_special_tokens", (False,), "the template writes them")
        pieces = _or(fields.flag("return_token_strs"), False)
    fields.done()
    return Tokenize(model, content, prompt, messages, special, bare, pieces)


def parse_detokenize(body: dict[str, Any]) -> Detokenize:
    """Raises BadRequest with the field's name as `param`."""
    fields = Fields(body)
    model, tokens = fields.text("model"), fields.array("tokens")
    if tokens is None:
        raise fields.fault("tokens", "missing")
    if not all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in tokens):
        raise fields.fault("tokens", f"token ids are whole numbers from 0 to {MAX_TOKEN_ID}")
    fields.done()
    return Detokenize(model, tuple(tokens))


def _or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _shown(data: bytes) -> str:
    return data.decode(errors="replace")


def _piece(data: bytes) -> str | list[int]:
    """Text, or the bytes where they are no text by themselves, as llama-server has it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
