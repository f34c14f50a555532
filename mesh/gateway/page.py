"""The web pages, `/`, `/blueprint` and `/launches`: files that hold no data, read once and given to whoever connects.

What the page shows it asks for like any other client, with the key of whoever looks at it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web
from blake3 import blake3

import mesh

log = logging.getLogger("mesh.gateway")

START: Final = "page/index.html"
# Pages that have an address of their own.
_PLACES: Final = {START: "/", "page/circuit.html": "/blueprint", "page/launches.html": "/launches"}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
# Nothing but these files runs, nothing but this server is talked to, and no text can become markup.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # kept by the browser and asked about each time: an upgrade shows at once
    hdrs.CACHE_CONTROL: "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    tag: str


class Page:
    """The files under `root`, by the path that each is served at."""

    def __init__(self, root: Path) -> None:
        self._files = {_PLACES.get(name, f"/web/{name}"): _file(path) for name, path in _named(root)}
        if "/" not in self._files:
            log.warning("the web page is not part of this installation (no %s): / is not served", START)
            self._files.clear()

    @classmethod
    def installed(cls) -> Page:
        """Those of the package, or of the checkout that it is run from."""
        return cls(installed_root())

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._files)

    def routes(self) -> list[web.RouteDef]:
        return [web.get(path, self.show) for path in sorted(self._files)]

    async def show(self, request: web.Request) -> web.Response:
        file = self._files[request.path]
        headers = {**_HEADERS, hdrs.ETAG: f'"{file.tag}"'}
        if any(tag.value in (file.tag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers={**headers, hdrs.CONTENT_TYPE: file.kind})


def installed_root() -> Path:
    """Where the files are: in the package, or in the checkout that it is run from."""
    package = Path(mesh.__file__).parent
    inside = package / "web"
    return inside if inside.is_dir() else package.parent / "web"


def _named(root: Path) -> Iterator[tuple[str, Path]]:
    """The verifier's modules and the page's files; neither its command line nor its tests."""
    for path in (*root.glob("*.js"), *root.glob("page/*")):
        if path.suffix in _TYPES and path.is_file():
            yield path.relative_to(root).as_posix(), path


def _file(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _TYPES[path.suffix], blake3(body).hexdigest()[:32])
