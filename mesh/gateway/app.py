"""The server: routes, who may use them, what is logged, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from mesh.blueprint.verification import Blueprint
from mesh.engine.protocol import ServingEngine
from mesh.errors import DeadlineExceeded, EngineUnavailable, LedgerError, MeshError, Refused
from mesh.gateway.answering import ENDED
from mesh.gateway.auth import Authenticator, Gatekeeper, StaticKeys
from mesh.gateway.backends import Backends, Route
from mesh.gateway.balance import Balance
from mesh.gateway.blueprints import Blueprints
from mesh.gateway.checkpoints import Checkpoints
from mesh.gateway.completions import CALLER, GRANT, SERVE, Completions
from mesh.gateway.config import GatewayConfig
from mesh.gateway.cors import Cors
from mesh.gateway.embeddings import Embeddings
from mesh.gateway.evidence import Evidence, Health
from mesh.gateway.faults import INTERNAL, error_body, headers_of, let_go, plain_error, status_of, told, where
from mesh.gateway.front import Front, Request
from mesh.gateway.identities import Identities
from mesh.gateway.intake import Intake
from mesh.gateway.journal import tell, write
from mesh.gateway.launches import Launches
from mesh.gateway.listening import Runner, take_address
from mesh.gateway.metrics import Metrics
from mesh.gateway.openapi import Description
from mesh.gateway.page import Page
from mesh.gateway.receipts import Receipts
from mesh.gateway.summary import Summary
from mesh.gateway.tokens import Tokens
from mesh.steward.steward import Steward

log = logging.getLogger("mesh.gateway")
access = logging.getLogger("mesh.access")

_OPEN_ROUTES = frozenset(("/healthz", "/readyz"))
_PURGE_INTERVAL_S = 600.0
_MAX_HEADERS = 64  # each of at most 8,190 bytes, which aiohttp sees to
_TURNED_DOWN = (Refused, EngineUnavailable, LedgerError, DeadlineExceeded)
_HTTP_CODES = {404: "unknown_route", 405: "method_not_allowed", 413: "body_too_large"}


class Gateway:
    """Serves `engines` under `steward`. `keys` are BLAKE3 digests (`b3:...`) of the bearer tokens that are let in,
    `authenticators` know other kinds of tokens, `origins` are the web pages of others that may use the server. With
    `journal` each serve has a line of its own in the log, beside the one of its request. `blueprints` are those that
    engines were started under, and `launches` the folder where launches keep their runs, to be shown."""

    def __init__(
        self,
        steward: Steward,
        engines: Sequence[ServingEngine],
        config: GatewayConfig,
        *,
        keys: Sequence[str] = (),
        authenticators: Sequence[Authenticator] = (),
        routes: Sequence[Route] = (),
        origins: Sequence[str] = (),
        journal: bool = True,
        blueprints: Sequence[Blueprint] = (),
        launches: Path | None = None,
    ) -> None:
        self._steward = steward
        self._config = config
        self._gate = Gatekeeper([*([StaticKeys(keys)] if keys else []), *authenticators])
        self._cors = Cors(origins)
        self.backends = Backends(steward, engines, config, routes)
        intake = Intake(config.max_body_bytes, config.body_memory_bytes, config.body_timeout_s)
        self._completions = Completions(steward, self.backends, intake, config)
        self._tokens = Tokens(self.backends, intake)
        self._identities = Identities(self.backends, intake)
        self._blueprints = Blueprints(self.backends, blueprints)
        self._launches = Launches(launches)
        self._embeddings = Embeddings(self.backends, intake)
        self._description = Description(self.backends, metrics=config.metrics, guarded=not self._gate.open)
        self.metrics = Metrics(self.backends, steward.costs)
        steward.observe(self.metrics.sealed)
        if journal:
            steward.observe(write)
        self._evidence = Evidence(steward, self.backends, int(time.time()))
        self._health = Health(steward, self.backends.all, config.min_free_bytes)
        shown = (Receipts(steward), Checkpoints(steward), Summary(steward, self.backends))
        self._shown = [route for each in shown for route in each.routes()]
        page = Page.installed() if config.page else None
        if page is not None:
            self._shown += page.routes()
        self._open_routes = _OPEN_ROUTES | (page.paths if page else frozenset())
        self._runner: Runner | None = None
        self._purging: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, taken: Sequence[socket.socket] = ()) -> int:
        """Listen; returns the port, a free one where `port` is 0. `taken` are the sockets of that address, where they
        were bound before. Raises UsageError for an address that others can reach while nothing is asked of them,
        OSError where it is taken."""
        self._gate.check_bind(host)
        sockets = taken or take_address(host, port)
        front = Front(
            [
                web.get("/healthz", self._health.alive),
                web.get("/readyz", self._health.ready),
                web.post("/v1/chat/completions", self._completions.chat),
                web.post("/v1/completions", self._completions.text),
                web.post("/mesh/v1/decide", self._completions.decide),
                web.post("/v1/embeddings", self._embeddings.refuse),
                *self._tokens.routes(),
                *self._evidence.routes(),
                *self._identities.routes(),
                *self._blueprints.routes(),
                *self._launches.routes(),
                *self._shown,
                web.get("/mesh/v1/grant/balance", Balance(steward=self._steward).show),
                web.get("/openapi.json", self._description.show),
                *([web.get("/metrics", self.metrics.show)] if self._config.metrics else []),
            ],
            max_body_bytes=self._config.max_body_bytes,
            mark=self._cors.mark if self._cors.configured else None,
        )
        # Bodies are inflated within our own bound, and a client that leaves ends its handler at once.
        runner = Runner(
            front,
            functools.partial(self._handle, front),
            self._config.max_connections,
            self._turned_away,
            handler_cancellation=True,
            auto_decompress=False,
            shutdown_timeout=1.0,
            keepalive_timeout=self._config.idle_timeout_s,
            max_headers=_MAX_HEADERS,
            logger=_http_log(),
        )
        try:
            await runner.setup()
            bound = await runner.listen(sockets)
        except BaseException:
            await runner.cleanup()
            for each in sockets:
                each.close()
            raise
        self._runner = runner
        self._purging = asyncio.ensure_future(self._purge())
        return bound

    async def stop(self) -> None:
        """Take no more, let running serves end within the configured time, cut the rest, close. New requests are told
        so until the last one has ended."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._health.draining = True
        if self._purging is not None:
            self._purging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._purging
        await self._completions.drain(self._config.drain_s)
        await runner.cleanup()

    def hurry(self) -> None:
        """Cut at once what a `stop` on its way still waits for."""
        self._completions.hurried.set()

    def _turned_away(self) -> None:
        self.metrics.refused("too_many_connections")

    async def _purge(self) -> None:
        """Delete kept prompts and answers when their time is over."""
        while True:
            try:
                await self._steward.purge()
            except LedgerError as e:
                log.warning("kept disclosures could not be purged: %s", e)
            await asyncio.sleep(_PURGE_INTERVAL_S)

    async def _handle(self, front: Front, request: Request) -> web.StreamResponse:
        """Any request. Has one line in the log for it, without anything that was said, and every error in one shape."""
        began = time.monotonic()
        status = 499  # the client left before there was an answer
        known = False
        try:
            try:
                route = await front.route(request)
                known = route.resource is not None
                response: web.StreamResponse | None = self._cors.preflight(request)
                if response is None:
                    self._let_in(request)
                    response = await route.handler(request)
            except ConnectionError:
                raise
            except Exception as e:
                if isinstance(e, web.HTTPException) and e.status < 400:
                    raise
                response = self._fault(request, e)
            status = request.get(ENDED, response.status)
            return response
        finally:
            if access.isEnabledFor(logging.INFO):
                # as it was sent: decoded, it may hold line breaks and what terminals act on
                path = request.rel_url.raw_path if known else "(unknown route)"
                took_s, caller, serve = time.monotonic() - began, request.get(CALLER, "-"), request.get(SERVE, "-")
                fields = {"method": request.method, "path": path, "status": status, "us": int(took_s * 1e6)}
                tell(
                    access, "%s %s %d %.1f ms caller=%s serve=%s",
                    (request.method, path, status, took_s * 1e3, caller, serve),
                    {**fields, "caller": caller, "serve": serve},
                )  # fmt: skip

    def _let_in(self, request: web.Request) -> None:
        """Raises Unauthorized or Forbidden where nothing of what is asked for is for this caller."""
        if request.path not in self._open_routes:
            credential = self._gate.credential(request.headers)
            request[CALLER] = credential.caller
            if credential.grant is not None:
                request[GRANT] = credential.grant

    def _fault(self, request: web.Request, error: Exception) -> web.Response:
        """What is answered in place of what was asked for; what nobody foresaw is a 500 that tells a client nothing."""
        if isinstance(error, MeshError):
            if isinstance(error, _TURNED_DOWN) and SERVE not in request:
                self.metrics.refused(error.code)
            if told(error) != str(error):
                log.error("%s: %s", type(error).__name__, error)
            status, body, headers = status_of(error), error_body(error), headers_of(error)
            if SERVE in request:
                headers["Mesh-Serve"] = request[SERVE]
        elif isinstance(error, web.HTTPException):
            code = _HTTP_CODES.get(error.status)
            self.metrics.refused(code or f"http_{error.status}")
            over = f"body: over {self._config.max_body_bytes} bytes"
            reason = over if error.status == 413 else error.reason.lower()
            status, body = error.status, plain_error(reason, "invalid_request_error", code)
            headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        else:
            log.error("unforeseen failure in %s %s: %s", request.method, request.path, where(error))
            status, body, headers = 500, INTERNAL, {}
        let_go(error)
        return web.json_response(body, status=status, headers=headers)


def _http_log() -> logging.Logger:
    logger = logging.getLogger("mesh.gateway.http")
    if not logger.filters:
        logger.addFilter(_WithoutContent())
    return logger


class _WithoutContent(logging.Filter):
    """aiohttp logs the exception of a request that it cannot parse, which quotes the line at fault: perhaps a key."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            record.msg, record.args = f"{record.getMessage()}: {where(record.exc_info[1])}", ()
            record.exc_info = None
        return True
