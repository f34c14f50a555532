"""`GET /mesh/v1/grant/balance`: what is left of a grant, for its bearer."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from mesh.errors import BadRequest
from mesh.gateway.completions import GRANT
from mesh.grant.caveats import TOTALS
from mesh.grant.inspection import chain_view
from mesh.ledger import Total
from mesh.schema.view import view
from mesh.steward.steward import Steward


class Balance:
    def __init__(self, *, steward: Steward) -> None:
        self._steward = steward

    async def show(self, request: web.Request) -> web.Response:
        """The grant, and of each total that one of its blocks states: what is settled, what of it was by estimate, what
        serves that run have reserved, and what is left. Others may draw from the same."""
        terms = request.get(GRANT)
        if terms is None:
            raise BadRequest("balance: this key is no grant", code="no_grant")
        blocks = terms.chain.blocks
        used = await asyncio.to_thread(self._steward.reader.totals, [block.id for block in blocks])
        totals: list[dict[str, Any]] = [
            {"block": number, "block_id": block.id.text, "caveat": name, **_figures(block.value.caveats[name], total)}
            for number, block in enumerate(blocks)
            for name in TOTALS
            if name in block.value.caveats
            for total in [used.get((block.id, name), Total())]
        ]
        return web.json_response({**chain_view(terms.chain), "totals": totals})


def _figures(limit: int, total: Total) -> dict[str, Any]:
    figures = {
        "limit": limit,
        "settled": total.settled,
        "estimated": total.estimated,
        "reserved": total.reserved,
        "left": max(0, limit - total.used),
    }
    return {name: view(figure) for name, figure in figures.items()}
