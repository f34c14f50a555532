"""What the gateway serves under: each blueprint with the models that run under it, and its circuit to be drawn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from mesh.blueprint.drawing import drawing
from mesh.blueprint.verification import Blueprint
from mesh.engine.protocol import blueprint_of
from mesh.errors import NotFound
from mesh.gateway.backends import Backends


class Blueprints:
    """The handlers. Those of `blueprints` are told that a backend runs under."""

    def __init__(self, backends: Backends, blueprints: Iterable[Blueprint]) -> None:
        self._backends = backends
        self._known = {one.id: one for one in blueprints}
        self._drawn: dict[bytes, bytes] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/mesh/v1/blueprints", self.list),
            web.get("/mesh/v1/blueprints/{blueprint_id}/circuit", self.circuit),
        ]

    async def list(self, request: web.Request) -> web.Response:
        models: dict[bytes, list[str]] = {}
        for backend in self._backends.all:
            if (under := blueprint_of(backend.engine)) is not None:
                models.setdefault(under, []).append(backend.name)
        told = [_told(self._known[under], names) for under, names in models.items() if under in self._known]
        return web.json_response({"blueprints": told})

    async def circuit(self, request: web.Request) -> web.Response:
        """Raises NotFound."""
        name = request.match_info["blueprint_id"]
        found = next((one for one in self._known.values() if name in (_text(one.id), one.id.hex())), None)
        if found is None:
            raise NotFound("blueprint: nothing here is served under it", code="blueprint_not_found")
        if found.id not in self._drawn:
            self._drawn[found.id] = await asyncio.to_thread(lambda: json.dumps(drawing(found, _mark(found))).encode())
        return web.Response(body=self._drawn[found.id], content_type="application/json")


def _mark(blueprint: Blueprint) -> str:
    return f"signed by {blueprint.chain[0].label}, and verified when this gateway began"


def _text(blueprint_id: bytes) -> str:
    return f"sha256:{blueprint_id.hex()}"


def _told(blueprint: Blueprint, models: list[str]) -> dict[str, Any]:
    body = blueprint.body
    return {
        "blueprint_id": _text(blueprint.id), "name": body.name, "lineage": body.lineage.hex(),
        "revision": body.revision, "signer": blueprint.chain[0].label if blueprint.signed else None, "models": models,
    }  # fmt: skip
