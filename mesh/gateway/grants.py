"""Grants as bearer tokens: checked once, held against the list of revoked blocks every time."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from mesh.errors import Forbidden, Invalid, ModelFileError, Unauthorized, UntrustedSteward, UsageError
from mesh.gateway.auth import Credential
from mesh.grant.chain import Chain, verify_grant
from mesh.grant.decision import DEFAULT_LEEWAY_NS, REVOKED, Refusal
from mesh.grant.revocation import parse_revoked
from mesh.grant.terms import Terms
from mesh.grant.text import PREFIX, grant_from_text
from mesh.identity.files import FileIdentity, open_regular
from mesh.schema.limits import MAX_REVOCATION_FILE_BYTES
from mesh.schema.trust import Trust

log = logging.getLogger("mesh.gateway")

_SETTLED_NS = 2 * 10**9  # coarser than the times of any file system
_CACHED = 4096  # checked grants, of which each takes some kilobytes


class Revocations:
    """The list in a file, read again when that has changed. Where it cannot be read, no grant is good: whoever can
    break a file could bring back a revoked one."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError or OSError where the list cannot be read now."""
        self._path = path
        self._seen: FileIdentity | None = None
        self._ids: frozenset[bytes] | None = None
        self._read()

    def current(self) -> frozenset[bytes]:
        """Raises Forbidden (`revocations_unreadable`)."""
        try:
            self._read()
        except (OSError, UsageError) as e:
            if self._ids is not None:
                log.error("revoked grants: %s: no grant is taken until that is mended", e)
            self._ids = self._seen = None
            raise Forbidden(
                "grant: the list of revoked blocks cannot be read here, so that no grant is taken",
                code="revocations_unreadable",
            ) from None
        assert self._ids is not None
        return self._ids

    def _read(self) -> None:
        seen = FileIdentity.of(self._path)
        if seen == self._seen:
            return
        try:
            with open_regular(self._path) as file:  # a pipe would hold the gateway up
                data = file.read(MAX_REVOCATION_FILE_BYTES + 1)
        except ModelFileError as e:
            raise UsageError(f"revocation list: {e}") from None
        self._ids = parse_revoked(data)
        # a file written twice within one tick of its clock has one time: what is this new is read again
        age_ns = time.time_ns() - max(seen.mtime_ns, seen.ctime_ns)
        self._seen = seen if abs(age_ns) > _SETTLED_NS else None


class GrantTokens:
    """An Authenticator for `mg1_` tokens of the issuers in `trust`."""

    def __init__(
        self,
        trust: Trust,
        *,
        revocations: Revocations | None = None,
        leeway_ns: int = DEFAULT_LEEWAY_NS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._trust = trust
        self._revoked = frozenset if revocations is None else revocations.current
        self._leeway_ns = leeway_ns
        self._clock_ns = clock_ns
        self._checked: OrderedDict[bytes, Chain] = OrderedDict()

    def authenticate(self, token: str) -> Credential | None:
        """Raises Unauthorized for a grant that is none or of an unknown issuer, Forbidden for one that was revoked. All
        else that a grant says is about serves, and is asked when there is one."""
        if not token.startswith(PREFIX):
            return None
        try:
            chain = self._chain(token)
            chain.check_issuer(self._trust, self._clock_ns())
        except UntrustedSteward as e:
            raise Unauthorized(str(e), code="untrusted_issuer") from None
        except Invalid as e:
            raise Unauthorized(f"grant: {e}", code="invalid_grant") from None
        revoked = self._revoked()
        for number, block in enumerate(chain.blocks):
            if block.id in revoked:
                raise Refusal(number, block.id, REVOKED, None, None).error()
        return Credential(f"grant:{chain.id.hex()[:32]}", Terms(chain, self._revoked, self._leeway_ns))

    def _chain(self, token: str) -> Chain:
        # the whole token: two that end otherwise are two
        name = blake3(token.encode("utf-8", "surrogateescape")).digest()
        chain = self._checked.get(name)
        if chain is None:
            chain = verify_grant(grant_from_text(token), self._trust)
            self._checked[name] = chain
            if len(self._checked) > _CACHED:
                self._checked.popitem(last=False)
        else:
            self._checked.move_to_end(name)
        return chain
