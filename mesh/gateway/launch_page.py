"""The page of launches by itself, on loopback: for an operator who launches and serves nothing here."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from mesh.errors import UsageError
from mesh.gateway.auth import is_loopback
from mesh.gateway.front import Front, Request
from mesh.gateway.launches import Launches
from mesh.gateway.listening import Runner, take_address
from mesh.gateway.page import Page

_CONNECTIONS = 100
_PLACE = "/launches"


class LaunchPage:
    """`folder` is where launches keep their runs. Nobody is asked for a key, so nobody from elsewhere is let in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner: Runner | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. Raises UsageError for an address that others can reach, OSError where it is taken."""
        if not is_loopback(host):
            raise UsageError(f"host {host!r} is not loopback: this page asks for no key. Bind it to 127.0.0.1")
        page = Page.installed()
        own = [route for route in page.routes() if route.path == _PLACE or route.path.startswith("/web/")]
        front = Front([*own, *Launches(self._folder).routes(), web.get("/", _home)])

        async def handle(request: Request) -> web.StreamResponse:
            route = await front.route(request)
            return await route.handler(request)

        self._runner = Runner(front, handle, _CONNECTIONS, lambda: None)
        await self._runner.setup()
        taken: Sequence[socket.socket] = ()
        try:
            taken = take_address(host, port)
            return await self._runner.listen(taken)
        except BaseException:
            await self.stop()
            for each in taken:
                each.close()
            raise

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


async def _home(request: web.Request) -> web.Response:
    raise web.HTTPFound(_PLACE)
