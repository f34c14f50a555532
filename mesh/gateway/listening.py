"""The sockets that a gateway listens on, taken before anything slow, and what is answered on them to no HTTP."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiohttp import http_exceptions, web

from mesh.gateway.door import Door
from mesh.gateway.faults import INTERNAL, plain_error, where
from mesh.gateway.front import HEADERS, Front, Request

log = logging.getLogger("mesh.gateway.http")

# What the parser found, in our words: its own quote the line at fault, which may hold a key.
_FAULTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (http_exceptions.LineTooLong, "a line or a header is too long"),
    (http_exceptions.InvalidHeader, "a header is malformed"),
    (http_exceptions.TransferEncodingError, "the chunks of the body are malformed"),
    (http_exceptions.ContentLengthError, "the body is shorter than its content-length"),
    (http_exceptions.InvalidURLError, "the target is not valid"),
    (http_exceptions.BadHttpMethod, "the method is not valid"),
)
_NO_HTTP: Final = "not a valid http/1.1 request"
# What it has one class for, by what it names.
_NAMED: Final = (
    ("content-length", "the content-length is not valid"),
    ("chunk", "the chunks of the body are malformed"),
    ("too many", "it has too many headers"),
    ("header", "a header is malformed"),
)
HttpFault: Final = (http_exceptions.HttpProcessingError, http_exceptions.PayloadEncodingError, web.RequestPayloadError)


def http_fault(error: BaseException | None) -> str:
    """What is wrong with a request that could not be read to its end."""
    named = [words for kind, words in _FAULTS if isinstance(error, kind)]
    said = str(getattr(error, "message", "")).lower()
    return next(iter([*named, *(words for name, words in _NAMED if name in said.partition("\n\n")[0])]), _NO_HTTP)


def take_address(host: str, port: int) -> list[socket.socket]:
    """A bound socket for each address of `host`, not listening yet. The caller closes them. Raises OSError where one
    is taken or there is no such address."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            taken = socket.socket(family, kind, protocol)
            sockets.append(taken)
            if os.name == "posix":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken.setblocking(False)
            taken.bind(address)
    except OSError as e:
        for taken in sockets:
            taken.close()
        what = os.strerror(e.errno) if e.errno is not None and e.errno in errno.errorcode else e.strerror or str(e)
        raise OSError(e.errno, f"cannot listen on {host} port {port}: {what}") from None
    return sockets


class Runner(web.ServerRunner):
    """Has the requests that `front` makes answered by `handle`. Answers what is no HTTP like every other fault, and
    logs it in one line. No more than `limit` connections are open at once; `turned_away` is told of each that is one
    too many. To be made on the event loop."""

    def __init__(
        self,
        front: Front,
        handle: Callable[[Request], Awaitable[web.StreamResponse]],
        limit: int,
        turned_away: Callable[[], None],
        *,
        handler_cancellation: bool = False,
        shutdown_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        server = web.Server(
            handle,  # type: ignore[arg-type]  # what it handles is made by `front`
            request_factory=front.request,
            handler_cancellation=handler_cancellation,
        )
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self.front = front
        options["access_log"] = None  # there is one of our own
        make = functools.partial(_Connection, server, loop=asyncio.get_running_loop(), **options)
        self._door = Door(make, lambda: len(server.connections) < limit, turned_away)

    @property
    def server(self) -> Any:
        return None if super().server is None else self._door

    async def listen(self, sockets: Sequence[socket.socket]) -> int:
        """Returns the port."""
        for each in sockets:
            await web.SockSite(self, each).start()
        port: int = self.addresses[0][1]
        return port


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if status >= 500:
            log.error("unforeseen failure of a connection: %s", "-" if exc is None else where(exc))
            body = INTERNAL
        else:
            log.info("request that cannot be read from %s: %s", request.remote, type(exc).__name__)
            body = plain_error(http_fault(exc), "invalid_request_error", "malformed_request")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        response = web.json_response(body, status=status, headers=HEADERS)
        response.force_close()
        return response
