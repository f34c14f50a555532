"""A response of server-sent events to a client that may stop reading at any time."""

from __future__ import annotations

import asyncio

from aiohttp import web

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
        self._last_s = 0.0

    async def open(self) -> None:
        await self.response.prepare(self._request)

    @property
    def quiet_s(self) -> float:
        """For how long nothing has been sent."""
        return asyncio.get_running_loop().time() - self._last_s

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError where the client is gone, TimeoutError where it takes nothing."""
        self._last_s = asyncio.get_running_loop().time()
        if self.sent is not None:
            self.sent += data
            if len(self.sent) > self._hold_bytes:
                self.sent = None
        async with asyncio.timeout(self._timeout_s):
            await self.response.write(data)

    def abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
