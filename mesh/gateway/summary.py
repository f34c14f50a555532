"""What the page's charts are drawn from: how the gateway is now, and what its newest receipts add up to."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from aiohttp import web

from mesh.gateway.backends import Backends
from mesh.gateway.query import Query
from mesh.gateway.receipts import own_caller
from mesh.gateway.recent import Recent, Row
from mesh.gateway.sums import MAX_GROUPS, NS_PER_S, POINTS, Group, grouped, series
from mesh.schema.view import view
from mesh.steward.steward import Steward

WINDOW_S: Final = 3600
LEAST_S, MOST_S = POINTS, 7 * 24 * 3600  # a step is a whole second at least


class Summary:
    def __init__(self, steward: Steward, backends: Backends) -> None:
        self._steward = steward
        self._backends = backends
        self._recent = Recent(steward.reader)
        self._adding = asyncio.Semaphore(1)  # it shares this process with the serves

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/mesh/v1/live", self.live), web.get("/mesh/v1/summary", self.summary)]

    async def live(self, request: web.Request) -> web.Response:
        """Two of these tell the power between them: what a meter counted, over the time between its readings."""
        Query(request, ())
        epoch, counted = self._steward.counted()
        meters = []
        for one in counted:
            domain = one.domain
            meter = {"domain": domain.name, "method": domain.method, "modelled": domain.modelled}
            meters.append(meter | ({"reason": one.fault} if one.uj is None else {"uj": view(one.uj)}))
            meters[-1]["read_ns"] = view(one.at_ns)
        told = {
            "at_ns": view(time.time_ns()),
            "receipts": await asyncio.to_thread(self._steward.reader.count),
            "epoch": epoch.hex(),
            "meters": meters,
            "backends": [
                {
                    "model": backend.name,
                    "slots": backend.room.slots,
                    "running": backend.room.running,
                    "waiting": backend.room.waiting,
                }
                for backend in self._backends.all
            ],
        }
        return web.json_response(told)

    async def summary(self, request: web.Request) -> web.Response:
        window_s = Query(request, ("window_s",)).integer("window_s", WINDOW_S, least=LEAST_S, most=MOST_S)
        rows = await self._recent.rows()
        async with self._adding:
            told = await asyncio.to_thread(summed, rows, own_caller(request), time.time_ns(), window_s)
        return web.json_response(told)


def summed(rows: tuple[Row, ...], own: str | None, now_ns: int, window_s: int) -> dict[str, Any]:
    """Over the serves that ended in the window. Blocking."""
    step_ns = -(-window_s // POINTS) * NS_PER_S
    # steps begin at whole multiples, so that what was drawn once stays as it was
    from_ns = (now_ns // step_ns + 1) * step_ns - POINTS * step_ns
    shown = [row for row in rows if row.ended_ns >= from_ns and (own is None or row.caller == own)]
    told: dict[str, Any] = {
        "at_ns": view(now_ns),
        "from_ns": view(from_ns),
        "step_s": step_ns // NS_PER_S,
        # older receipts may be of the window too, and were not looked at
        "complete": not rows or rows[0].seq == 0 or rows[0].ended_ns < from_ns,
        "total": _total(shown).view(),
        "series": series(shown, from_ns, step_ns),
    }
    for name, key in (("by_model", lambda row: row.model), ("by_caller", lambda row: row.caller)):
        groups = grouped(shown, key)
        told[name] = [group.view() for group in groups[:MAX_GROUPS]]
        if len(groups) > MAX_GROUPS:
            told[f"{name}_left_out"] = len(groups) - MAX_GROUPS
    if rows:
        told["from_seq"] = rows[0].seq
    return told


def _total(rows: list[Row]) -> Group:
    total = Group("")
    for row in rows:
        total.add(row)
    return total
