"""Who is asking. On loopback without keys it is whoever sits at this machine; else a bearer token that is known."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence

from blake3 import blake3

from mesh.errors import Forbidden, Unauthorized, UsageError
from mesh.schema.ids import ContentId

LOOPBACK_CALLER = "loopback"


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gatekeeper:
    """Holds BLAKE3 digests of the keys that are let in, never a key. Without any, only loopback is served."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [bytes(ContentId.from_text(key)) for key in keys]

    @property
    def open(self) -> bool:
        return not self._digests

    def check_bind(self, host: str) -> None:
        """Raises UsageError for an address that others can reach, where nothing would be asked of them."""
        if self.open and not is_loopback(host):
            raise UsageError(
                f"host {host!r} is not loopback and no keys are configured: anyone could use this server. "
                "set [auth] keys, or bind to 127.0.0.1"
            )

    def caller(self, authorization: str | None, host: str | None) -> str:
        """The caller's id, which is no secret: it goes into the ledger and the log. Raises Unauthorized, or Forbidden
        for a request that a web page sent through a name of its own (DNS rebinding)."""
        if self.open:
            if host is None or not is_loopback(_host_of(host)):
                raise Forbidden(
                    "host header is not a loopback name and no keys are configured", code="host_not_loopback"
                )
            return LOOPBACK_CALLER
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("no bearer token given", code="missing_api_key")
        digest = blake3(token.strip().encode("utf-8", "surrogateescape")).digest()
        known = False
        for one in self._digests:  # all of them, so that the time says nothing
            known |= hmac.compare_digest(one, digest)
        if not known:
            raise Unauthorized("this key is not known here", code="invalid_api_key")
        return f"key:{digest.hex()[:16]}"


def _host_of(header: str) -> str:
    """The host of a Host header, its port and brackets taken off."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
