"""The page of launches by itself, on loopback: for an operator who launches and serves nothing here."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from mesh.errors import UsageError
from mesh.gateway.auth import is_loopback
from mesh.gateway.launches import Launches
from mesh.gateway.listening import HEADERS, Runner, take_address
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
        app = web.Application()
        own = [route for route in page.routes() if route.path == _PLACE or route.path.startswith("/web/")]
        app.router.add_routes([*own, *Launches(self._folder).routes(), web.get("/", _home)])
        app.on_response_prepare.append(_mark)
        self._runner = Runner(app, _CONNECTIONS, lambda: None, access_log=None)
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


async def _mark(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = HEADERS["Server"]
