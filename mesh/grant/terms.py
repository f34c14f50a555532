"""A grant as a gateway holds it against serves: with its own list of revoked blocks and its own leeway."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from mesh.grant.caveats import TOTALS
from mesh.grant.chain import Chain
from mesh.grant.decision import DEFAULT_LEEWAY_NS, NOTHING_USED, Decision, Used, decide
from mesh.grant.frame import Frame


@dataclass(frozen=True, slots=True)
class Terms:
    """`revoked` gives the list as it is now: a serve may have waited since its grant was checked. What is used of
    totals decides where a serve reserves its own part; who knows it before can say so and spare the work until then."""

    chain: Chain
    revoked: Callable[[], Collection[bytes]] = frozenset
    leeway_ns: int = DEFAULT_LEEWAY_NS

    @property
    def totals(self) -> dict[tuple[bytes, str], int]:
        """What its blocks state of totals, by block id and caveat."""
        return {
            (block.id, name): block.value.caveats[name]
            for block in self.chain.blocks
            for name in TOTALS
            if name in block.value.caveats
        }

    def decide(self, frame: Frame, *, used: Used = NOTHING_USED) -> Decision:
        return decide(self.chain, frame, used=used, revoked=self.revoked(), leeway_ns=self.leeway_ns)
