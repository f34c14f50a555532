"""What is read from clients at once: bodies come in within a time and within a bound on all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import hdrs, web

from mesh.errors import BadRequest, Overloaded
from mesh.gateway.jsonbody import inflate, parse_object
from mesh.gateway.listening import HttpFault, http_fault

JSON_TYPE = "application/json"
_OFF_LOOP_BYTES = 64 * 1024  # bodies from here on are parsed in a thread
_RETRY_S = 1

T = TypeVar("T")


class Intake:
    """Bodies of at most `max_bytes` each and `memory_bytes` together, each whole within `timeout_s` seconds."""

    def __init__(self, max_bytes: int, memory_bytes: int, timeout_s: float) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s

    def place(self, request: web.Request) -> _Place:
        """Room for a request's body, for as long as anything of it is held: to be entered at once. Raises Overloaded,
        and BadRequest (`body_too_large`) for a body that says of itself that it is."""
        length = request.content_length
        if length is not None and length > self.max_bytes:
            raise BadRequest(f"body: {length} bytes, at most {self.max_bytes}", code="body_too_large")
        # a body that does not say how long it is, or that will be inflated, may be as long as any
        known = length is not None and hdrs.CONTENT_ENCODING not in request.headers
        claim = length if known and length is not None else self.max_bytes
        if self.held_bytes and self.held_bytes + claim > self._memory_bytes:
            raise Overloaded("requests of other clients fill the memory for them", retry_after_s=_RETRY_S)
        return _Place(self, claim)

    async def read(self, request: web.Request, understand: Callable[[dict[str, Any]], T]) -> tuple[bytes, T]:
        """The body and what it asks for. JSON has to be called JSON: a web page of another origin can send anything
        else without the browser asking first. Raises BadRequest, web.HTTPRequestEntityTooLarge, and what `understand`
        does."""
        headers = request.headers
        if headers.get(hdrs.CONTENT_TYPE) != JSON_TYPE and request.content_type != JSON_TYPE:
            raise BadRequest(f"content-type: expected {JSON_TYPE}", code="unsupported_media_type")
        content = request.content
        # it has come whole with its head, as most do: no need for a clock
        data = content.read_nowait() if content.is_eof() else await self._in_time(request)
        if len(data) > self.max_bytes:
            raise web.HTTPRequestEntityTooLarge(self.max_bytes, len(data))
        encoding = None
        if hdrs.CONTENT_ENCODING in headers:
            encoding = ", ".join(headers.getall(hdrs.CONTENT_ENCODING)) or None
        if encoding is None and len(data) < _OFF_LOOP_BYTES:
            return data, understand(parse_object(data))

        def read() -> tuple[bytes, T]:
            body = inflate(data, encoding, max_bytes=self.max_bytes)
            return body, understand(parse_object(body))

        return await asyncio.to_thread(read)

    async def _in_time(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request.read()
        except TimeoutError:
            raise BadRequest("body: not complete in time", code="body_timeout") from None
        except HttpFault as e:
            raise BadRequest(f"body: {http_fault(e)}", code="malformed_body") from None


class _Place:
    """What a request's body takes of the memory for all of them, while it is entered."""

    __slots__ = ("_bytes", "_intake")

    def __init__(self, intake: Intake, held_bytes: int) -> None:
        self._intake = intake
        self._bytes = held_bytes

    def __enter__(self) -> None:
        self._intake.held_bytes += self._bytes

    def __exit__(self, *_: object) -> None:
        self._intake.held_bytes -= self._bytes
