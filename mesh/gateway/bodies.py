"""A request's body: read within its bounds of size and time, and parsed without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from mesh.errors import BadRequest
from mesh.gateway.config import GatewayConfig
from mesh.gateway.jsonbody import inflate, parse_object

JSON_TYPE = "application/json"
OFF_LOOP_BYTES = 64 * 1024  # bodies from here on are parsed in a thread

T = TypeVar("T")


async def read_body(
    request: web.Request, config: GatewayConfig, understand: Callable[[dict[str, Any]], T]
) -> tuple[bytes, T]:
    """The body and what it asks for. JSON has to be called JSON: a web page of another origin can send anything else
    without the browser asking first."""
    if request.content_type != JSON_TYPE:
        raise BadRequest(f"content-type: expected {JSON_TYPE}", code="unsupported_media_type")
    data = await _in_time(request, config.body_timeout_s)
    encoding = ", ".join(request.headers.getall("Content-Encoding", ())) or None

    def read() -> tuple[bytes, T]:
        body = inflate(data, encoding, max_bytes=config.max_body_bytes)
        return body, understand(parse_object(body))

    if encoding is None and len(data) < OFF_LOOP_BYTES:
        return read()
    return await asyncio.to_thread(read)


async def _in_time(request: web.Request, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise BadRequest("body: not complete in time", code="body_timeout") from None
