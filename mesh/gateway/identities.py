"""What the backends are, exactly, and the handshake: a peer shows what it is before anything is opened with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from mesh.engine.protocol import identity_gap_of, identity_of, shard_route_of
from mesh.errors import BadRequest, Invalid, RouteIncompatible
from mesh.gateway.backends import Backend, Backends
from mesh.gateway.evidence import engine_view
from mesh.gateway.intake import Intake
from mesh.identity.handshake import FINGERPRINT_MISMATCH, check_handshake
from mesh.identity.mismatch import FINGERPRINT, Mismatch, explain, listed
from mesh.identity.shard import ShardIdentity

_FIELDS: Final = ("model", "fingerprint", "identity")
_NO_IDENTITY: Final = "this backend has no identity"


class Identities:
    """The handlers, over the backends there are."""

    def __init__(self, backends: Backends, intake: Intake) -> None:
        self._backends = backends
        self._intake = intake

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/mesh/v1/backends", self.backends), web.post("/mesh/v1/handshake", self.handshake)]

    async def backends(self, request: web.Request) -> web.Response:
        return web.json_response({"backends": [_backend_view(backend) for backend in self._backends.all]})

    async def handshake(self, request: web.Request) -> web.Response:
        """Open where one of the backends that are asked for is what the peer is. Raises RouteIncompatible with each
        one's reasons."""
        with self._intake.place(request):
            _, peer = await self._intake.read(request, Peer.parse)
        asked = self._backends.all if peer.model is None else self._backends.named(peer.model)
        reasons: list[dict[str, Any]] = []
        said = []
        for backend in asked:
            mismatches = _mismatches(backend, peer)
            if not mismatches:
                assert backend.identity is not None
                told = {
                    "compatible": True,
                    "backend": backend.name,
                    "fingerprint": backend.identity.fingerprint.to_map(),
                }
                return web.json_response(told)
            said.append(f"{backend.name}: {listed(mismatches)}")
            reasons += [{"backend": backend.name, **mismatch.to_map()} for mismatch in mismatches]
        raise RouteIncompatible(f"handshake: {'; '.join(said)}", reasons=reasons, code=FINGERPRINT_MISMATCH)


class Peer:
    """What a peer shows of itself: a fingerprint, or the whole identity, which then says by which axis it differs."""

    def __init__(self, model: str | None, fingerprint: Any, identity: ShardIdentity | None) -> None:
        self.model, self.fingerprint, self.identity = model, fingerprint, identity

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Peer:
        """Raises BadRequest for a body that is none, or an identity that contradicts itself."""
        for name in body:
            if name not in _FIELDS:
                raise BadRequest(f"{name[:80]!r}: unknown field", code="unknown_parameter", param=name[:80])
        model = body.get("model")
        if model is not None and not isinstance(model, str):
            raise BadRequest("model: expected text", code="invalid_value", param="model")
        if ("fingerprint" in body) == ("identity" in body):
            raise BadRequest("expected either fingerprint or identity", code="invalid_value", param="fingerprint")
        if "identity" not in body:
            return cls(model, body["fingerprint"], None)
        try:
            identity = ShardIdentity.from_map(body["identity"])
        except Invalid as e:
            raise BadRequest(f"identity: {e.code}: {e}", code="invalid_value", param="identity") from None
        return cls(model, identity.fingerprint.to_map(), identity)


def _mismatches(backend: Backend, peer: Peer) -> tuple[Mismatch, ...]:
    mine = backend.identity
    if mine is None:
        return (Mismatch(FINGERPRINT, "identity", identity_gap_of(backend.engine) or _NO_IDENTITY),)
    if (changed := backend.taken_out) is not None:
        return (Mismatch(FINGERPRINT, "identity", str(changed)),)
    if peer.identity is not None:
        return explain(mine, peer.identity)
    return check_handshake(mine, peer.fingerprint)


def _backend_view(backend: Backend) -> dict[str, Any]:
    engine, taken_out = backend.engine, backend.taken_out
    identity, route = identity_of(engine), shard_route_of(engine)
    return {
        **engine_view(engine),
        "aliases": sorted(backend.aliases),
        "identity": None if identity is None else identity.to_map(),
        "identity_gap": (identity_gap_of(engine) or _NO_IDENTITY) if identity is None else None,
        "shard_route": None if route is None else {"route_digest": route.digest.text, "nodes": len(route.nodes)},
        "taken_out": None if taken_out is None else str(taken_out),
    }
