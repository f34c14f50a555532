"""Who is asking. On loopback without keys it is whoever sits at this machine; else a bearer token that is known."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from blake3 import blake3

from mesh.errors import Forbidden, Unauthorized, UsageError
from mesh.grant.terms import Terms
from mesh.schema.ids import ContentId

LOOPBACK_CALLER = "loopback"
# What others put a key into. None of it is read as one; it must not name another than the one that is charged.
_OTHER_KEY_HEADERS = ("X-Api-Key", "Api-Key")


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Credential:
    """Who was let in. `caller` is no secret: it goes into the ledger and the log. `grant` is what bounds it, None where
    nothing does."""

    caller: str
    grant: Terms | None = None


_LOOPBACK = Credential(LOOPBACK_CALLER)


class Authenticator(Protocol):
    """One kind of bearer token."""

    def authenticate(self, token: str) -> Credential | None:
        """Whose token it is; None where it is not of this kind or not known. Raises Unauthorized for one of this kind
        that is good no more."""
        ...


class StaticKeys:
    """Keys that the operator wrote down, as BLAKE3 digests (`b3:...`): never a key."""

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = [bytes(ContentId.from_text(digest)) for digest in digests]

    def authenticate(self, token: str) -> Credential | None:
        digest = blake3(token.encode("utf-8", "surrogateescape")).digest()
        known = False
        for one in self._digests:  # all of them, so that the time says nothing
            known |= hmac.compare_digest(one, digest)
        return Credential(f"key:{digest.hex()[:16]}") if known else None


class Gatekeeper:
    """Lets in whoever one of `authenticators` knows. Without any, only loopback is served."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = list(authenticators)
        self.open = not self._authenticators

    def check_bind(self, host: str) -> None:
        """Raises UsageError for an address that others can reach, where nothing would be asked of them, and for text
        that is no address."""
        if self.open and not is_loopback(host):
            raise UsageError(
                f"host {host!r} is not loopback and no keys are configured: anyone could use this server. "
                "set [auth] keys, or bind to 127.0.0.1"
            )
        try:
            if "\0" in host.encode("idna").decode():  # the resolver would fail on either
                raise ValueError("a null character")
        except ValueError as e:
            raise UsageError(f"host {host[:80]!r} is no name of a host: {e}") from None

    def credential(self, headers: Mapping[str, str]) -> Credential:
        """Raises Unauthorized, or Forbidden for a request that a web page sent through a name of its own (DNS
        rebinding)."""
        if self.open:
            host = headers.get("Host")
            if host is None or not _names_loopback(host):
                raise Forbidden(
                    "host header is not a loopback name and no keys are configured", code="host_not_loopback"
                )
            return _LOOPBACK
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("no bearer token given", code="missing_api_key")
        if any(headers.get(name, token) != token for name in _OTHER_KEY_HEADERS):
            raise Unauthorized("two keys given, and they differ", code="invalid_api_key")
        for authenticator in self._authenticators:
            credential = authenticator.authenticate(token)
            if credential is not None:
                return credential
        raise Unauthorized("this key is not known here", code="invalid_api_key")


@lru_cache(maxsize=64)  # clients say the same each time
def _names_loopback(header: str) -> bool:
    """Whether the host of a Host header, its port and brackets taken off, is this machine alone."""
    return is_loopback(header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0])
