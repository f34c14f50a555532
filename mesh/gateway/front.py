"""Requests on their way to their handlers: by the path alone where that says it all, as it mostly does.

A web.Application would do the same for any number of applications in each other, and looks for them at each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

# That every answer has. Nothing is for a cache in between: answers and disclosures are private.
HEADERS: Final = {"Server": "mesh", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

Mark = Callable[[web.BaseRequest, web.StreamResponse], None]


class Request(web.Request):
    """A request whose answers all have HEADERS, and what `mark` adds, just before their heads are written."""

    ATTRS = web.Request.ATTRS | {"mark"}
    mark: Mark | None = None

    def get(self, key: Any, default: Any = None) -> Any:
        return self._state.get(key, default)  # a mapping's own one has an exception made for what is not there

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        self.marks(response)

    def marks(self, response: web.StreamResponse) -> None:
        headers = response.headers
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        headers[hdrs.SERVER] = HEADERS["Server"]  # aiohttp has put its own there, with every version
        if self.mark is not None:
            self.mark(self, response)

    def follow(self, match: web.UrlMappingMatchInfo) -> None:
        """From here on `match_info` is what the path was found to say."""
        self._match_info = match


class Whole(web.Response):
    """An answer that is all there, with status 200. To a client that goes on after it, head and body are written
    without a look at what else a response could be: compressed, in chunks, with cookies."""

    def __init__(self, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(body=body, headers={**headers, "Content-Type": f"{content_type}; charset=utf-8"})
        self._whole = body

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        goes_on = request.keep_alive and self._keep_alive is None and request.version == HttpVersion11
        if not (goes_on and type(request) is Request and request.method != hdrs.METH_HEAD and not self.prepared):
            return await super().prepare(request)
        headers, writer = self._headers, request.writer
        headers[hdrs.CONTENT_LENGTH] = str(len(self._whole))
        headers[hdrs.DATE] = _date(int(time.time()))
        request.marks(self)
        self._keep_alive = self._eof_sent = True
        await writer.write_headers("HTTP/1.1 200 OK", headers)
        await writer.write_eof(self._whole)
        return writer


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)


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
