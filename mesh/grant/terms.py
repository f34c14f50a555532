"""A grant as a gateway holds it against serves: with its own list of revoked blocks and its own leeway."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from mesh.grant.chain import Chain
from mesh.grant.decision import DEFAULT_LEEWAY_NS, Decision, decide
from mesh.grant.frame import Frame


@dataclass(frozen=True, slots=True)
class Terms:
    """`revoked` gives the list as it is now: a serve may have waited since its grant was checked. What is used of
    totals is not asked here, but where a serve reserves its own part."""

    chain: Chain
    revoked: Callable[[], Collection[bytes]] = frozenset
    leeway_ns: int = DEFAULT_LEEWAY_NS

    def decide(self, frame: Frame) -> Decision:
        return decide(self.chain, frame, revoked=self.revoked(), leeway_ns=self.leeway_ns)
