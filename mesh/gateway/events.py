"""A response of server-sent events to a client that may stop reading at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from mesh.engine.alarm import Alarm

STREAM_TYPE = "text/event-stream"


class EventStream:
    """A response of server-sent events. `sent` is all of it while that stays within `hold_bytes`, else None."""

    def __init__(self, request: web.Request, headers: dict[str, str], timeout_s: float, hold_bytes: int) -> None:
        self.response = web.StreamResponse(
            headers={
                **headers,
                "Content-Type": f"{STREAM_TYPE}; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self._request = request
        self._timeout_s = timeout_s
        self._hold_bytes = hold_bytes
        self.sent: bytearray | None = bytearray()
        self._loop = asyncio.get_running_loop()
        self._last_s = 0.0
        self._writing = self._stuck = False
        self._alarm = Alarm(self._give_up)

    async def open(self) -> None:
        await self.response.prepare(self._request)

    @property
    def quiet_s(self) -> float:
        """For how long nothing has been sent."""
        return self._loop.time() - self._last_s

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError where the client is gone, TimeoutError where it takes nothing."""
        await self._send(data, self.response.write)

    async def end(self, data: bytes) -> None:
        """`send` of the last there is, and the end of the response with it: what comes together costs one write."""
        await self._send(data, self.response.write_eof)

    async def _send(self, data: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._last_s = self._loop.time()
        if self.sent is not None:
            self.sent += data
            if len(self.sent) > self._hold_bytes:
                self.sent = None
        self._alarm.set(self._last_s + self._timeout_s)
        self._writing = True
        try:
            await write(data)
        finally:
            self._writing = False
        if self._stuck:
            raise TimeoutError

    def close(self) -> None:
        """Nothing more is sent."""
        self._alarm.close()

    def _give_up(self) -> None:
        if self._writing:
            self._stuck = True
            self.abort()

    def abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
