"""`/openapi.json`: what this server takes and gives, as an OpenAPI 3.1 description.

Requests are closed where the server's are: what is not described is refused. Answers are open: fields may come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from aiohttp import web

import mesh
from mesh.gateway.backends import Backends
from mesh.gateway.openapi_requests import FLAG, TEXT, Schema, array, ref, request_schemas, whole
from mesh.gateway.query import MAX_CHARS
from mesh.gateway.receipts import MAX_PAGE
from mesh.gateway.summary import LEAST_S, MOST_S
from mesh.schema.energy import BASES
from mesh.schema.limits import MAX_UINT
from mesh.schema.outcome import FINISHES

_ANY: Schema = {}
_REASONS: Schema = {"type": ["object", "array"]}  # by backend; of a handshake each with its axis
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_JSON = "application/json"
_ID_FORM = r"b3:[0-9a-f]{64}"
_SERVE_FORM = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RECEIPT_ID: Schema = {**TEXT, "pattern": f"^{_ID_FORM}$"}
_SERVE_ID: Schema = {**TEXT, "pattern": f"^{_SERVE_FORM}$"}

_WHY = {
    400: "the request is wrong, or no backend may serve it",
    401: "no credential, or one that nobody knows",
    403: "the credential does not reach this far",
    404: "no such model, receipt, serve or settings document",
    408: "the body did not come in time",
    409: "the idempotency key is in use",
    413: "the body is too large",
    415: "not JSON, or an encoding that is not known",
    422: "the idempotency key was used with another body",
    429: "no place in the queue; Retry-After says when",
    502: "the engine failed; what it made is sealed",
    503: "nothing can be served now; Retry-After says when",
    504: "the request's time was over",
}


def _answer(*required: str, **fields: Schema) -> Schema:
    """An object that has these fields, the `required` ones always, and perhaps more."""
    return {"type": "object", "properties": fields, "required": list(required)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_USAGE = _answer(
    "prompt_tokens", "completion_tokens", "total_tokens",
    prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT,
    prompt_tokens_details=_answer(cached_tokens=_COUNT),
)  # fmt: skip
_ENERGY = _answer(
    "basis",
    basis={"enum": list(BASES)},
    energy_joules=_NUMBER, energy_kwh=_NUMBER, avg_power_watts=_NUMBER, duration_seconds=_NUMBER, reason=TEXT,
    receipt_id=_RECEIPT_ID, receipt_ids=array(_RECEIPT_ID),
)  # fmt: skip
_OF_A_SERVE = _answer(
    "serve_id", "receipt_id",
    serve_id=_SERVE_ID, receipt_id=_RECEIPT_ID, steward=TEXT, seq=_ANY, energy=_ANY, deterministic=FLAG,
    recipe_id=TEXT, disclosure=TEXT, incomplete_character=FLAG, format=TEXT, grammar=TEXT, grammar_text=TEXT,
    logprobs={"const": "raw"}, failed_before=array(_ANY),
)  # fmt: skip
_MESH: Schema = {"anyOf": [ref("Serve"), _answer("choices", choices=array(ref("Serve"), 1))]}
_FRAME: dict[str, Schema] = {"id": TEXT, "created": _COUNT, "model": TEXT}
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
_MESSAGE = _answer(
    "role", "content", role={"const": "assistant"}, content=_or_null(TEXT), refusal={"type": "null"},
    tool_calls=array(_answer(
        "id", "type", "function",
        id=TEXT, type={"const": "function"}, function=_answer("name", "arguments", name=TEXT, arguments=TEXT),
    )),
)  # fmt: skip
_MODEL = _answer("id", "object", "created", "owned_by", id=TEXT, object={"const": "model"}, created=_COUNT)


def _whole(kind: str, **more: Schema) -> Schema:
    told = {"usage": ref("Usage"), "energy": ref("Energy"), "mesh": _MESH}
    fields = {**_FRAME, "object": {"const": kind}, **told, **more}
    return _answer(*fields, **fields)


def _choices(**said: Schema) -> Schema:
    fields = {"index": _COUNT, "finish_reason": _FINISH, "logprobs": _or_null({"type": "object"}), **said}
    return array(_answer(*fields, **fields), 1)


_ANSWERS: dict[str, Schema] = {
    "Error": _answer(
        "error",
        error=_answer(
            "message", "type", "param", "code",
            message=TEXT, type=TEXT, param=_or_null(TEXT), code=_or_null(TEXT), reasons=_REASONS, grant=_ANY,
            mesh=_ANY,
        ),
    ),
    "Usage": _USAGE,
    "Energy": _ENERGY,
    "Serve": _OF_A_SERVE,
    "ChatAnswer": _whole("chat.completion", choices=_choices(message=_MESSAGE)),
    "TextAnswer": _whole("text_completion", choices=_choices(text=TEXT)),
    "Decision": _whole(
        "mesh.decision",
        decision=_answer("index", "option", index=_COUNT, option=TEXT),
        options=array(
            _answer(
                "index", "option", "tokens", "logprob", "probability",
                index=_COUNT, option=TEXT, tokens=_COUNT, logprob=_NUMBER,
                probability={"type": "number", "minimum": 0, "maximum": 1},
            ),
            2,
        ),
    ),
    # in place of an answer to a repeated idempotency key that is no longer held
    "Repeated": _answer("object", "mesh", object={"const": "mesh.receipt"}, choices=array(_ANY, 0, 0), mesh=_ANY),
    "Tokens": _answer(
        "tokens",
        tokens=array({"anyOf": [_COUNT, _answer("id", "piece", id=_COUNT, piece={"anyOf": [TEXT, array(_COUNT)]})]}),
        count=_COUNT, max_model_len=_COUNT, token_strs=_or_null(array(TEXT)),
    ),
    "Text": _answer("content", "prompt", content=TEXT, prompt=TEXT),
    "Model": _MODEL,
    "Models": _answer("object", "data", object={"const": "list"}, data=array(ref("Model"))),
    "Steward": _answer("steward", "version", "receipts", "engines", steward=TEXT, receipts=_COUNT, engines=array(_ANY)),
    "Receipt": _answer("view_of", "receipt_id", "receipt", receipt_id=_RECEIPT_ID, receipt={"type": "object"}),
    "Receipts": _answer(
        "count", "searched", "receipts", count=_COUNT, searched=_COUNT, next=_COUNT,
        receipts=array(_answer(
            "seq", "receipt_id", "serve_id", "caller", "envelope",
            seq=_COUNT, receipt_id=_RECEIPT_ID, serve_id=_SERVE_ID, caller=TEXT, envelope=TEXT,
        )),
    ),
    "Checkpoints": _answer(
        "checkpoints", next=_COUNT,
        checkpoints=array(_answer("number", "envelope", number=_COUNT, envelope=TEXT)),
    ),
    "Settings": _answer("view_of", "digest", "settings", digest=_RECEIPT_ID, settings={"type": "object"}),
    "Route": _answer("view_of", "digest", "route", digest=_RECEIPT_ID, route={"type": "object"}),
    "Balance": _answer("totals", totals=array(_ANY)),
    "Status": _answer("status", status=TEXT, reasons=array(TEXT)),
}  # fmt: skip


def _asked(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"anyOf": [schema, {"const": ""}]}}  # empty counts as absent


def describe(models: Sequence[str], *, metrics: bool, guarded: bool) -> dict[str, Any]:
    """The description of a server with these names of models; `metrics`: it has the route for Prometheus; `guarded`: it
    asks for a credential."""
    served = "a sealed answer; Mesh-Serve and Mesh-Receipt name its serves and receipts"
    stream = {"text/event-stream": {"schema": {**TEXT, "description": "where `stream` is true: server-sent events"}}}
    binary = {"type": "string", "format": "binary"}
    receipt_path = [_in_path("id", f"^({_ID_FORM}|{_SERVE_FORM})$", "a receipt id or a serve id")]

    def asked(name: str, *answers: str, streams: bool = False, told: str = served) -> dict[str, Any]:
        schema = {"anyOf": [ref(answer) for answer in answers]} if len(answers) > 1 else ref(answers[0])
        content = {_JSON: {"schema": schema}} | (stream if streams else {})
        return _post(name, {"200": {"description": told, "content": content}}, key=told is served)

    paths: dict[str, Any] = {
        "/v1/models": {"get": _get("the served models", {_JSON: ref("Models")})},
        "/v1/models/{model}": {"get": _get("one of them", {_JSON: ref("Model")}, [_in_path("model")])},
        "/v1/chat/completions": {"post": asked("ChatRequest", "ChatAnswer", "Repeated", streams=True)},
        "/v1/completions": {"post": asked("TextRequest", "TextAnswer", "Repeated", streams=True)},
        "/v1/embeddings": {"post": _post("EmbeddingsRequest", {})},
        "/mesh/v1/decide": {"post": asked("DecideRequest", "Decision", "Repeated")},
        "/tokenize": {"post": asked("TokenizeRequest", "Tokens", told="ids; nothing is served")},
        "/detokenize": {"post": asked("DetokenizeRequest", "Text", told="text; nothing is served")},
        "/mesh/v1/steward": {"get": _get("the key, the count, the head, the engines", {_JSON: ref("Steward")})},
        "/mesh/v1/backends": {"get": _get("the backends, and exactly what each is", {_JSON: {"type": "object"}})},
        "/mesh/v1/blueprints": {"get": _get("what is served under blueprints", {_JSON: {"type": "object"}})},
        "/mesh/v1/blueprints/{blueprint_id}/circuit": {
            "get": _get("its circuit, to be drawn", {_JSON: {"type": "object"}}, [_in_path("blueprint_id")])
        },
        "/mesh/v1/launches": {"get": _get("clusters, nodes and runs of launches", {_JSON: {"type": "object"}})},
        "/mesh/v1/handshake": {"post": _post("HandshakeRequest", _HANDSHAKE)},
        "/mesh/v1/receipts": {
            "get": _get("the receipts, newest first, a page at a time", {_JSON: ref("Receipts")}, _SEARCH)
        },
        "/mesh/v1/checkpoints": {
            "get": _get(
                "the signed checkpoints, oldest first, a page at a time", {_JSON: ref("Checkpoints")},
                [_asked("limit", whole(1, MAX_PAGE)), _asked("after", whole(0, MAX_UINT))],
            )
        },
        "/mesh/v1/summary": {
            "get": _get(
                "sums over the newest receipts", {_JSON: {"type": "object"}},
                [_asked("window_s", whole(LEAST_S, MOST_S))],
            )
        },
        "/mesh/v1/live": {"get": _get("what runs now", {_JSON: {"type": "object"}})},
        "/mesh/v1/receipts/{id}": {
            "get": _get("the envelope, or its view", {"application/cose": binary, _JSON: ref("Receipt")}, receipt_path)
        },
        "/mesh/v1/receipts/{id}/disclosure": {
            "get": _get("for the serve's caller", {"application/mesh-disclosure+cbor": binary}, receipt_path)
        },
        "/mesh/v1/settings/{digest}": {
            "get": _get(
                "a settings document", {"application/cbor": binary, _JSON: ref("Settings")},
                [_in_path("digest", f"^{_ID_FORM}$")],
            )
        },
        "/mesh/v1/routes/{digest}": {
            "get": _get(
                "a route of shards", {"application/cbor": binary, _JSON: ref("Route")},
                [_in_path("digest", f"^{_ID_FORM}$")],
            )
        },
        "/mesh/v1/grant/balance": {"get": _get("for the bearer of a grant", {_JSON: ref("Balance")})},
        "/openapi.json": {"get": _get("this description", {_JSON: {"type": "object"}})},
        "/healthz": {"get": _get("the process lives", {_JSON: ref("Status")}, open_=True)},
        "/readyz": {"get": _get("it can serve", {_JSON: ref("Status")}, open_=True)},
    }  # fmt: skip
    if metrics:
        paths["/metrics"] = {"get": _get("for Prometheus", {"text/plain": TEXT})}
    for path, operations in paths.items():
        for method, operation in operations.items():
            operation["operationId"] = _operation(method, path)
            if (links := _LINKS.get(path)) is not None:
                operation["responses"]["200"]["links"] = links
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mesh", "version": mesh.__version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "summary": "A metered serving gateway: OpenAI's routes, and a signed receipt for every answer.",
        },
        "paths": paths,
        "components": {
            "schemas": {**request_schemas(models), **_ANSWERS},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "a key or a grant"}},
        },
        "security": [{"bearer": []}] if guarded else [],
    }  # fmt: skip


def _operation(method: str, path: str) -> str:
    return f"{method}{re.sub('[^a-z0-9]+', '_', path).rstrip('_')}"


def _link(path: str, name: str, value: str) -> dict[str, Any]:
    return {"operationId": _operation("get", path), "parameters": {name: value}}


_TO_RECEIPT = {
    "receipt": _link("/mesh/v1/receipts/{id}", "id", "$response.header.Mesh-Receipt"),
    "disclosure": _link("/mesh/v1/receipts/{id}/disclosure", "id", "$response.header.Mesh-Serve"),
}
_SEARCH = [
    _asked("limit", whole(1, MAX_PAGE)),
    _asked("before", whole(0, MAX_UINT)),
    _asked("id", {**TEXT, "pattern": "^(b3:)?[0-9a-fA-F-]{1,64}$"}),
    *(_asked(name, {**TEXT, "maxLength": MAX_CHARS}) for name in ("model", "caller")),
    _asked("finish", {"enum": list(FINISHES)}),
    _asked("basis", {"enum": list(BASES)}),
    *(_asked(name, {**TEXT, "description": "a time, as in a trust file"}) for name in ("from", "until")),
]
_HANDSHAKE: dict[str, Any] = {
    "200": {"description": "a backend is what the peer is", "content": {_JSON: {"schema": {"type": "object"}}}},
    "409": {"description": "none is, and why", "content": {_JSON: {"schema": ref("Error")}}},
}
_LINKS = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/mesh/v1/decide"), _TO_RECEIPT),
    "/mesh/v1/steward": {
        "settings": _link("/mesh/v1/settings/{digest}", "digest", "$response.body#/engines/0/settings_digest")
    },
    "/v1/models": {"model": _link("/v1/models/{model}", "model", "$response.body#/data/0/id")},
}


class Description:
    """The handler, over the backends there are."""

    def __init__(self, backends: Backends, *, metrics: bool, guarded: bool) -> None:
        self._described = describe(backends.names, metrics=metrics, guarded=guarded)

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(self._described)


def _faults(*statuses: int) -> dict[str, Any]:
    content = {_JSON: {"schema": ref("Error")}}
    return {str(status): {"description": _WHY[status], "content": content} for status in statuses}


def _post(name: str, answers: dict[str, Any], *, key: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {
        "requestBody": {"required": True, "content": {_JSON: {"schema": ref(name)}}},
        "responses": {**answers, **_faults(400, 401, 403, 404, 408, 413, 415, 429, 502, 503, 504)},
    }
    if key:
        told["responses"] |= _faults(409, 422)
        header = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
        told["parameters"] = [{"name": "Idempotency-Key", "in": "header", "schema": header}]
    return told


def _get(
    told: str, content: dict[str, Schema], parameters: Sequence[dict[str, Any]] = (), *, open_: bool = False
) -> dict[str, Any]:
    answered = {kind: {"schema": schema} for kind, schema in content.items()}
    responses: dict[str, Any] = {"200": {"description": told, "content": answered}}
    if open_:
        responses["503"] = {"description": "it cannot", "content": answered}
        return {"responses": responses, "security": []}
    return {"responses": responses | _faults(400, 401, 403, 404, 503), "parameters": list(parameters)}


def _in_path(name: str, pattern: str | None = None, told: str | None = None) -> dict[str, Any]:
    schema = TEXT if pattern is None else {**TEXT, "pattern": pattern}
    described = {} if told is None else {"description": told}
    return {"name": name, "in": "path", "required": True, "schema": schema, **described}
