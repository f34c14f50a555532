"""The mesh's own routes: the steward, its receipts, disclosures for their callers, settings, and how the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

import mesh
from mesh.engine.protocol import ServingEngine, identity_of, shard_route_of
from mesh.errors import BadRequest, EngineUnavailable, Forbidden, LedgerError, NotFound, SchemaError
from mesh.gateway.backends import Backend, Backends
from mesh.gateway.completions import CALLER
from mesh.ledger import Entry
from mesh.schema.canonical import decode_map, encode
from mesh.schema.disclosure import DISCLOSURE_TYPE, settings_digest
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.ids import ContentId, serve_id_from_text, serve_id_text, steward_text
from mesh.schema.limits import MAX_SETTINGS_BYTES
from mesh.schema.view import route_view, sealed_view, settings_view
from mesh.steward.steward import Steward

ENVELOPE_TYPE = "application/cose"
_NS_PER_DAY = 24 * 3600 * 10**9


class Evidence:
    """The handlers, over a steward and its engines. `started_s` is Unix time."""

    def __init__(self, steward: Steward, backends: Backends, started_s: int) -> None:
        self._steward = steward
        self._backends = backends
        self._engines = [backend.engine for backend in backends.all]
        self._started_s = started_s

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.get("/mesh/v1/steward", self.steward),
            web.get("/mesh/v1/receipts/{id}", self.receipt),
            web.get("/mesh/v1/receipts/{id}/disclosure", self.disclosure),
            web.get("/mesh/v1/settings/{digest}", self.settings),
            web.get("/mesh/v1/routes/{digest}", self.route),
        ]

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model(name) for name in self._backends.names]})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(self._model(request.match_info["model"]))

    def _model(self, name: str) -> dict[str, Any]:
        """A backend by its name; by an alias what those that share it can do, at most, and which they are."""
        engines = [backend.engine for backend in self._backends.named(name)]
        alone = engines[0].recipe_id == name
        return {
            "id": name,
            "object": "model",
            "created": self._started_s,
            "owned_by": "mesh",
            "context_tokens": max(engine.context_tokens for engine in engines),
            "mesh": engine_view(engines[0]) if alone else {"backends": [engine.recipe_id for engine in engines]},
        }

    async def steward(self, request: web.Request) -> web.Response:
        reader = self._steward.reader
        count, head = await asyncio.to_thread(lambda: (reader.count(), reader.head()))
        keep_ns = self._steward.keep_ns
        return web.json_response(
            {
                "steward": steward_text(self._steward.public),
                "version": mesh.__version__,
                "receipts": count,
                "head": None if head is None else ContentId(head).text,
                "disclosures_kept_days": None if keep_ns is None else keep_ns // _NS_PER_DAY,
                "engines": [engine_view(engine) for engine in self._engines],
            }
        )

    async def receipt(self, request: web.Request) -> web.Response:
        entry = await self._entry(request.match_info["id"])
        receipt_id = ContentId(entry.receipt_id).text
        headers = {"Mesh-Serve": serve_id_text(entry.serve_id), "Mesh-Receipt": receipt_id}
        if not _wants_json(request):
            return web.Response(body=entry.envelope, content_type=ENVELOPE_TYPE, headers=headers)
        sealed = verify(entry.envelope, RECEIPT_TYPE, {self._steward.public})
        return web.json_response(sealed_view(sealed), headers=headers)

    async def disclosure(self, request: web.Request) -> web.Response:
        entry = await self._entry(request.match_info["id"])
        if entry.caller != request[CALLER]:
            raise Forbidden("disclosure: this serve was another caller's", code="other_caller")
        disclosure = await asyncio.to_thread(self._steward.disclosure, entry)
        return web.Response(body=disclosure.to_cbor(), content_type=DISCLOSURE_TYPE)

    async def settings(self, request: web.Request) -> web.Response:
        digest = _content_id(request.match_info["digest"])
        data = await asyncio.to_thread(self._steward.reader.settings, digest)
        if data is None:
            # the ledger learns them with the first serve, clients may ask before
            told = (dict(engine.settings) for engine in self._engines)
            data = next((encode(one) for one in told if settings_digest(one) == digest), None)
        if data is None:
            raise NotFound(f"settings {digest.text} are not known here", code="settings_not_found")
        if not _wants_json(request):
            return web.Response(body=data, content_type="application/cbor")
        settings = decode_map(data, max_bytes=MAX_SETTINGS_BYTES)
        return web.json_response(settings_view(digest, settings))

    async def route(self, request: web.Request) -> web.Response:
        digest = _content_id(request.match_info["digest"])
        data = await asyncio.to_thread(self._steward.reader.route, digest)
        if data is None:
            told = (route for engine in self._engines if (route := shard_route_of(engine)) is not None)
            data = next((encode(one.document) for one in told if one.digest == digest), None)
        if data is None:
            raise NotFound(f"route {digest.text} is not known here", code="route_not_found")
        if not _wants_json(request):
            return web.Response(body=data, content_type="application/cbor")
        return web.json_response(route_view(digest, decode_map(data, max_bytes=MAX_SETTINGS_BYTES)))

    async def _entry(self, name: str) -> Entry:
        """The ledger's entry by receipt id or serve id. Raises NotFound; with code `not_sealed_yet` for a serve that
        runs."""
        reader = self._steward.reader
        if name.startswith("b3:"):
            entry = await asyncio.to_thread(reader.by_receipt, _content_id(name))
        else:
            try:
                serve_id = serve_id_from_text(name)
            except SchemaError:
                raise BadRequest(f"{name[:80]!r} is no receipt id and no serve id", code="invalid_id") from None
            entry = await asyncio.to_thread(reader.by_serve, serve_id)
            if entry is None and any(one.serve_id == serve_id for one in await asyncio.to_thread(reader.open_intents)):
                raise NotFound(f"serve {name} still runs: its receipt comes when it ends", code="not_sealed_yet")
        if entry is None:
            raise NotFound(f"no receipt of {name} in this ledger", code="receipt_not_found")
        return entry


class Health:
    """Open to anyone who can connect: says whether it can serve, and nothing of what it served."""

    def __init__(self, steward: Steward, backends: Sequence[Backend], min_free_bytes: int) -> None:
        self._steward = steward
        self._backends = backends
        self._min_free_bytes = min_free_bytes
        self.draining = False

    async def alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def ready(self, request: web.Request) -> web.Response:
        reasons = []
        if self.draining:
            reasons.append("shutting down")
        try:
            # whoever balances by this answer sends no serve that would find the disk writable again
            await self._steward.check_writable()
            free = self._steward.free_bytes
        except (LedgerError, OSError):
            reasons.append("the ledger cannot be written")
        else:
            if free is not None and free < self._min_free_bytes:
                reasons.append(f"the ledger's disk has {free} bytes free, expected at least {self._min_free_bytes}")
        for backend in self._backends:
            try:
                if (changed := backend.taken_out) is not None:
                    raise changed
                await backend.engine.ready()
            except EngineUnavailable as e:
                reasons.append(f"{backend.name}: {e}")
        if reasons:
            return web.json_response({"status": "not ready", "reasons": reasons}, status=503)
        return web.json_response({"status": "ready"})


def engine_view(engine: ServingEngine) -> dict[str, Any]:
    """What a client may know of an engine before it sends anything."""
    identity = identity_of(engine)
    told: dict[str, Any] = {
        "recipe_id": engine.recipe_id,
        "backend_id": engine.backend_id,
        "fidelity": int(engine.fidelity),
        "settings_digest": settings_digest(dict(engine.settings)).text,
        "weights_digest": None if engine.weights_digest is None else engine.weights_digest.text,
        "model_artifact_digest": None if identity is None else identity.artifact.model_artifact_digest,
        "runtime_recipe_digest": None if identity is None else identity.recipe.runtime_recipe_digest,
        "template_digest": None if engine.template_digest is None else engine.template_digest.text,
        "template_source": engine.settings.get("template_source"),
        "precision": engine.precision,
        "context_tokens": engine.context_tokens,
        "slots": engine.slots,
        "est_uj_per_token": engine.est_uj_per_token,
    }
    check = getattr(engine, "self_check", None)
    if check is not None:
        told["determinism"] = check.reason
    return told


def _content_id(text: str) -> ContentId:
    try:
        return ContentId.from_text(text)
    except SchemaError as e:
        raise BadRequest(str(e), code="invalid_id") from None


def _wants_json(request: web.Request) -> bool:
    """Whether the client names JSON and not COSE; the envelope itself is what an empty or open Accept gets."""
    accept = request.headers.get("Accept", "")
    return "application/json" in accept and ENVELOPE_TYPE not in accept
