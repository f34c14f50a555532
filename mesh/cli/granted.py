"""Whose grants a gateway takes, from flags or from a `mesh.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.trust import read_trust
from mesh.errors import UsageError

if TYPE_CHECKING:
    from mesh.gateway.auth import Authenticator

_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Granted:
    """`issuers` are keys, or paths of trust files. None of them: no grant is taken. `named` is where they
    were given."""

    issuers: tuple[str, ...] = ()
    revoked: Path | None = None
    leeway_s: int = 2
    named: str = "--issuer"

    def authenticators(self) -> list[Authenticator]:
        """Raises UsageError, or OSError for a file that cannot be read."""
        from mesh.gateway.grants import GrantTokens, Revocations

        if not self.issuers:
            if self.revoked is not None:
                raise UsageError("a list of revoked blocks without an issuer: there is no grant that it could be about")
            return []
        trust = read_trust(self.issuers, flag=self.named)
        revocations = None if self.revoked is None else Revocations(self.revoked)
        return [GrantTokens(trust, revocations=revocations, leeway_ns=self.leeway_s * _NS_PER_S)]
