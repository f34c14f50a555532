"""Whether a grant admits a serve, and if not, exactly why: every caveat of every block is held against the frame."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mesh.errors import GrantRefused
from mesh.grant.block import Block
from mesh.grant.caveats import CAVEATS, STEWARD_IN, TOTALS
from mesh.grant.chain import Chain
from mesh.grant.draw import Draw
from mesh.grant.frame import Frame
from mesh.schema.ids import ContentId
from mesh.schema.view import view

DEFAULT_LEEWAY_NS = 2 * 10**9  # between the issuer's clock and the gateway's
REVOKED = "revoked"

Used = Mapping[tuple[bytes, str], int]
"""What is settled and reserved of each total, by block id and caveat; absent is 0."""
NOTHING_USED: Used = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """`block` counts from 0. `caveat` is its name, or `revoked`. `stated` is what the block says and `offered` what the
    serve has to say about it, None where it has nothing; of a total, `offered` is the worst case and `left` what is
    left of it."""

    block: int
    block_id: ContentId
    caveat: str
    stated: Any
    offered: Any
    left: int | None = None

    def __str__(self) -> str:
        where = f"block {self.block} ({self.block_id})"
        if self.caveat == REVOKED:
            return f"{where} was revoked"
        if self.caveat not in CAVEATS:
            return f"{where}: caveat {self.caveat!r} is not known here"
        offered = "nothing is known of that" if self.offered is None else f"offered {_shown(self.caveat, self.offered)}"
        left = "" if self.left is None else f", {self.left} left"
        return f"{where}: {self.caveat} {_shown(self.caveat, self.stated)}, {offered}{left}"

    def error(self) -> GrantRefused:
        """As what a request is refused with."""
        code = "grant_revoked" if self.caveat == REVOKED else None
        return GrantRefused(f"grant: {self}", grant=self.to_view(), code=code)

    def to_view(self) -> dict[str, Any]:
        """For JSON. What an unknown caveat states is left out: its shape is anybody's."""
        known = self.caveat in CAVEATS
        told = {"block": self.block, "block_id": self.block_id.text, "caveat": self.caveat}
        if known:
            told |= {"stated": caveat_view(self.caveat, self.stated), "offered": caveat_view(self.caveat, self.offered)}
        return told if self.left is None else told | {"left": view(self.left)}


@dataclass(frozen=True, slots=True)
class Decision:
    """Admitted where there is no refusal; `draws` are then to be reserved before the serve begins."""

    grant_id: ContentId
    refusals: tuple[Refusal, ...]
    draws: tuple[Draw, ...]

    @property
    def admitted(self) -> bool:
        return not self.refusals


def decide(
    chain: Chain,
    frame: Frame,
    *,
    used: Used = NOTHING_USED,
    revoked: Collection[bytes] = frozenset(),
    leeway_ns: int = DEFAULT_LEEWAY_NS,
) -> Decision:
    refusals: list[Refusal] = []
    draws: list[Draw] = []
    for number, block in enumerate(chain.blocks):
        if block.id in revoked:
            refusals.append(Refusal(number, block.id, REVOKED, None, None))
        for name in sorted(block.value.caveats):
            refusal = _held(number, block, name, frame, leeway_ns) or _within(number, block, name, frame, used)
            if refusal is not None:
                refusals.append(refusal)
            elif name in TOTALS:
                draws.append(_draw(number, block, name, frame))
    return Decision(chain.id, tuple(refusals), () if refusals else tuple(draws))


def _held(number: int, block: Block, name: str, frame: Frame, leeway_ns: int) -> Refusal | None:
    stated = block.value.caveats[name]
    caveat = CAVEATS.get(name)
    offered = None if caveat is None else caveat.offered(frame)
    if caveat is not None and offered is not None and caveat.holds(stated, offered, leeway_ns):
        return None
    return Refusal(number, block.id, name, stated, offered)


def _within(number: int, block: Block, name: str, frame: Frame, used: Used) -> Refusal | None:
    """Whether what others drew from a total leaves enough."""
    if name not in TOTALS:
        return None
    return beyond(_draw(number, block, name, frame), used.get((block.id, name), 0))


def beyond(draw: Draw, used: int) -> Refusal | None:
    """Why a total of which so much is used does not bear a draw; None where it does."""
    left = max(0, draw.limit - used)
    if draw.amount <= left:
        return None
    return Refusal(draw.block, ContentId(draw.block_id), draw.caveat, draw.limit, draw.amount, left)


def _draw(number: int, block: Block, name: str, frame: Frame) -> Draw:
    amount = TOTALS[name](frame)
    assert amount is not None, "a frame that lacks it was refused"
    return Draw(number, block.id, name, block.value.caveats[name], amount)


def caveat_view(name: str, value: Any) -> Any:
    """What a caveat states or is offered, as JSON: keys and digests in their text forms."""
    return view(value, "steward" if name == STEWARD_IN else name)


def _shown(name: str, value: Any) -> str:
    told = caveat_view(name, value)
    return ", ".join(map(str, told)) if isinstance(told, list) else str(told)
