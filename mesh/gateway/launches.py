"""Clusters, nodes and runs of launches, as their state folder tells of them: the ledgers, and the last look at the
nodes. Only read; whoever looks at the nodes is another program.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from mesh.errors import LaunchError
from mesh.launch.live import read_live
from mesh.launch.run_choice import every_ledger
from mesh.launch.run_ledger import Run

_CLOSED: Final = 50  # runs that are over, the newest
_PATIENCE_S: Final = 30  # of a look that is late, beyond three of its intervals
_MS: Final = 10**6
_NOBODY: Final = "nobody has looked at its nodes lately"


class Launches:
    """The handler. `folder` is None where nothing was said of launches."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/mesh/v1/launches", self.show)]

    async def show(self, request: web.Request) -> web.Response:
        if self._folder is None:
            return web.json_response({"configured": False})
        return web.json_response(await asyncio.to_thread(told_of, self._folder, time.time_ns()))


def told_of(folder: Path, now_ns: int) -> dict[str, Any]:
    """What a page shows. An open run, and a node, is what the last look found, as long as that is no older than three
    of its intervals and half a minute; later nobody knows."""
    told: dict[str, Any] = {"configured": True, "now_ms": now_ns // _MS}
    live: dict[str, Any] | None = None
    if not folder.is_dir():
        told["fault"] = "the state folder is not there"
    try:
        live = read_live(folder)
    except LaunchError as e:
        told["fault"] = str(e).replace(str(folder), "the state folder")
    except OSError as e:
        told["fault"] = f"the last look cannot be read: {(e.strerror or str(e)).lower()}"
    fresh = live is not None and abs(now_ns - live["at_ns"]) <= (3 * live["every_s"] + _PATIENCE_S) * 10**9
    if live is not None:
        told |= {"looked_ms": live["at_ns"] // _MS, "every_s": live["every_s"]}
    told["fresh"] = fresh
    clusters = _tables(live, "clusters")
    told["clusters"] = [_cluster(one, fresh=fresh) for one in clusters]
    seen = {str(run.get("run")): run for one in clusters for run in _tables(one, "runs")} if fresh else {}
    runs = [_run(name, run, seen.get(run.id)) for name, run in _runs(folder, told)]
    told["runs"] = sorted(runs, key=lambda run: (run["state"] == "closed", -run.get("opened_ms", 0)))
    return told


def _runs(folder: Path, told: dict[str, Any]) -> list[tuple[str, Run]]:
    """Those that are open, and the newest of the others."""
    every = []
    try:
        for name, ledger in every_ledger(folder):
            every += [(name, run) for run in ledger.runs()]
    except OSError as e:
        told["fault"] = f"the run ledgers cannot be read: {(e.strerror or str(e)).lower()}"
    closed = sorted((each for each in every if not each[1].open), key=lambda each: each[1].id, reverse=True)
    return [each for each in every if each[1].open] + closed[:_CLOSED]


def _cluster(one: dict[str, Any], *, fresh: bool) -> dict[str, Any]:
    nodes = [
        {key: node[key] for key in ("node", "address", "state", "why") if isinstance(node.get(key), str)}
        for node in _tables(one, "nodes")
    ]
    if not fresh:
        nodes = [{**node, "state": "unknown", "why": "nobody has looked lately"} for node in nodes]
    state = "unknown" if not fresh else "up" if one.get("up") is True else "down"
    blocked = one.get("blocked")
    causes = [str(cause) for cause in blocked] if isinstance(blocked, list) and fresh else []
    told = {"cluster": str(one.get("cluster")), "state": state, "nodes": nodes}
    return {**told, "blocked": causes} if causes else told


def _run(recipe: str, run: Run, seen: dict[str, Any] | None) -> dict[str, Any]:
    opened, closed = run.opened, run.closed
    ranks = [
        {"node": str(node.get("name")), "rank": rank, "liveness": "unknown"}
        for rank, node in enumerate(_tables(opened, "nodes"))
    ]
    told: dict[str, Any] = {
        "recipe": recipe, "run": run.id, "model": _text(opened.get("model")), "engine": _text(opened.get("engine")),
        "cluster": _text(opened.get("cluster")), "launch_digest": _text(opened.get("record")),
        "opened_ms": _ms(opened.get("at_ns")), "nodes": ranks,
    }  # fmt: skip
    if closed is not None:
        told |= {"state": "closed", "closed_ms": _ms(closed.get("at_ns")), "how": _text(closed.get("how")),
                 "why": _text(closed.get("why")), "verified": closed.get("verified") is True}  # fmt: skip
    elif seen is None:
        told |= {"state": "open", "readiness": "unknown", "why": _NOBODY}
    else:
        told |= _found(seen, ranks)
    if run.phase == "stopping" and closed is None:
        told["why"] = f"is being stopped; {told.get('why', '')}".rstrip("; ")
    return {key: value for key, value in told.items() if value is not None}


def _found(seen: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last look says of an open run, as far as it is what it should be."""
    told = {key: _text(seen.get(key)) for key in ("state", "readiness", "why")}
    alive = {one.get("node"): _text(one.get("liveness")) for one in _tables(seen, "nodes")}
    nodes = [{**rank, "liveness": alive.get(rank["node"]) or "unknown"} for rank in ranks]
    return {**told, "state": told["state"] or "open", "nodes": nodes}


def _tables(value: Any, key: str) -> list[dict[str, Any]]:
    """What a file that somebody may have edited holds there, as far as it is what it should be."""
    listed = value.get(key) if isinstance(value, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _ms(value: Any) -> int | None:
    return value // _MS if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None
