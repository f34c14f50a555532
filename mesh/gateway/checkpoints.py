"""`GET /mesh/v1/checkpoints`: the signed checkpoints, oldest first, a page at a time: what whoever audits the receipts
holds them against."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any, Final

from aiohttp import web

from mesh.gateway.query import Query
from mesh.gateway.receipts import MAX_PAGE, PAGE
from mesh.schema.limits import MAX_UINT
from mesh.steward.steward import Steward

_KNOWN: Final = ("limit", "after")


class Checkpoints:
    def __init__(self, steward: Steward) -> None:
        self._reader = steward.reader

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/mesh/v1/checkpoints", self.show)]

    async def show(self, request: web.Request) -> web.Response:
        """`next` is what `after` has to be for what follows; without it there is no more."""
        query = Query(request, _KNOWN)
        limit = query.integer("limit", PAGE, least=1, most=MAX_PAGE)
        after = query.integer("after", 0, most=MAX_UINT)
        found = await asyncio.to_thread(
            lambda: list(itertools.islice(self._reader.checkpoints(after=after), limit + 1))
        )
        told: dict[str, Any] = {
            "checkpoints": [
                {"number": number, "envelope": base64.urlsafe_b64encode(envelope).rstrip(b"=").decode()}
                for number, envelope in found[:limit]
            ]
        }
        if len(found) > limit:
            told["next"] = found[limit - 1][0]
        return web.json_response(told)
