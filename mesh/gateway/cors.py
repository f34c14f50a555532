"""Web pages of other origins: a browser lets those use the server that the operator named, and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import hdrs, web

_METHODS = "GET, POST"
_ASKED = "Authorization, Content-Type, Idempotency-Key"
_SHOWN = "Mesh-Serve, Mesh-Receipt, Idempotency-Replayed, Retry-After"
_MAX_AGE_S = "600"


class Cors:
    """`origins` as browsers spell them, or `*`. Credentials of the browser itself are never asked for: a key is in a
    header that the page sets."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks before it sends, which by its rules carries no key; None for any other
        request. It runs nothing."""
        asks = request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        if not asks or not self._allows(request):
            return None
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: self._headers(request),
            hdrs.ACCESS_CONTROL_MAX_AGE: _MAX_AGE_S,
        }
        return web.Response(status=204, headers=headers)

    @property
    def configured(self) -> bool:
        return bool(self._origins)

    def mark(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Say so on every answer, errors too: without it a page cannot tell a refusal from a broken network."""
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if self._allows(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = request.headers[hdrs.ORIGIN]
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _SHOWN

    def _allows(self, request: web.BaseRequest) -> bool:
        origin = request.headers.get(hdrs.ORIGIN)
        return origin is not None and (origin in self._origins or "*" in self._origins)

    @staticmethod
    def _headers(request: web.Request) -> str:
        # OpenAI's client for browsers adds headers of its own; what a header is called harms nobody
        return request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS) or _ASKED
