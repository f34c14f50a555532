"""Requests on their way to their handlers: by the path alone where that says it all, as it mostly does.

A web.Application would do the same for any number of applications in each other, and looks for them at each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiohttp import hdrs, web

# That every answer has. Nothing is for a cache in between: answers and disclosures are private.
HEADERS: Final = {"Server": "mesh", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

Mark = Callable[[web.BaseRequest, web.StreamResponse], None]


class Request(web.Request):
    """A request whose answers all have HEADERS, and what `mark` adds, just before their heads are written."""

    ATTRS = web.Request.ATTRS | {"mark"}
    mark: Mark | None = None

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        headers = response.headers
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        headers[hdrs.SERVER] = HEADERS["Server"]  # aiohttp has put its own there, with every version
        if self.mark is not None:
            self.mark(self, response)

    def follow(self, match: web.UrlMappingMatchInfo) -> None:
        """From here on `match_info` is what the path was found to say."""
        self._match_info = match


class Front:
    """Makes the requests that come in, and finds the route of each. To be made on the event loop."""

    def __init__(
        self, routes: Iterable[web.AbstractRouteDef], *, max_body_bytes: int = 1024**2, mark: Mark | None = None
    ) -> None:
        self._router = web.UrlDispatcher()
        self._router.add_routes(routes)
        self._router.freeze()
        self._plain: dict[tuple[str, str], web.AbstractRoute] = {
            (route.method, route.resource.canonical): route
            for route in self._router.routes()
            if isinstance(route.resource, web.PlainResource)
        }
        self._max_body_bytes = max_body_bytes
        self._mark = mark
        self._loop = asyncio.get_running_loop()

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The methods and paths that are served; a name in braces is for any part of a path."""
        routes = self._router.routes()
        return [(route.method, route.resource.canonical) for route in routes if route.resource is not None]

    def request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
        """What aiohttp's server makes a request of."""
        request = Request(message, payload, protocol, writer, task, self._loop, client_max_size=self._max_body_bytes)
        if self._mark is not None:
            request.mark = self._mark
        return request

    async def route(self, request: Request) -> web.AbstractRoute:
        """Its handler raises the web.HTTPException of a request that has none; such a route has no resource. Whoever
        asks before it sends a body is told to go on. Raises web.HTTPException where something else is asked for."""
        route = self._plain.get((request.method, request.rel_url.raw_path))
        if route is None:
            match = await self._router.resolve(request)
            request.follow(match)
            route = match.route
        if request.headers.get(hdrs.EXPECT):
            await route.handle_expect_header(request)
            await request.writer.drain()
        return route
