"""Where connections come in: no more at once than the server can hold, and none for ever without a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: mesh\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s"
)
_BODY = b'{"error":{"message":"too many connections","type":"server_error","param":null,"code":"overloaded"}}'


class Door:
    """Makes the protocol of each new connection: with `make`, or one that says no where there is no room. `turned_away`
    is told of each of those."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], room: Callable[[], bool], turned_away: Callable[[], None]
    ) -> None:
        self._make = make
        self._room = room
        self._turned_away = turned_away

    def __call__(self) -> asyncio.Protocol:
        if self._room():
            return self._make()
        self._turned_away()
        return _Full()


class _Full(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        answered = cast(asyncio.Transport, transport)
        answered.write(_FULL % (len(_BODY), _BODY))
        answered.close()
