"""How a serve ended and what was counted."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

from mesh.schema.value import Digest, FidelityLevel, Label, Token, TokenCount, UInt, Value

Finish = Literal["stop", "length", "cancelled", "engine-error", "interrupted", "refused"]
FINISHES: tuple[str, ...] = get_args(Finish)
CountedBy = Literal["engine", "gateway", "both", "none"]


class Fidelity(IntEnum):
    """How close the weights are to the published ones, in bits per weight."""

    F0 = 0  # unrated
    F1 = 1  # up to 4.99
    F2 = 2  # up to 8.99
    F3 = 3  # the published precision

    @classmethod
    def of_bits_per_weight(cls, bits: float) -> Fidelity:
        """The rating of a quantization. F3 is never derived from a width: it says "as published"."""
        return cls.F1 if bits < 5 else cls.F2 if bits < 9 else cls.F0


class ServeOutcome(Value):
    """Counts are token counts. A count that nobody could take is absent; a counted 0 is there.

    `tokens_out` is the number of committed ids, which include the terminating token and those that complete a stop
    string. `tokens_delivered` are those whose text reached the client. `cache_hit_tokens` are prompt tokens that
    were not computed again. `decision` is the index of the chosen option. `reason` says why a serve did not finish.
    """

    finish: Finish
    counted_by: CountedBy
    tokens_in: TokenCount | None = None
    tokens_out: TokenCount | None = None
    tokens_accepted: TokenCount | None = None
    tokens_delivered: TokenCount | None = None
    cache_hit_tokens: TokenCount | None = None
    spec_proposed: TokenCount | None = None
    spec_accepted: TokenCount | None = None
    decision: UInt | None = None
    delivered_fidelity: FidelityLevel | None = None
    weights_digest: Digest | None = None
    precision: Label | None = None
    reason: Token | None = None

    def __post_init__(self) -> None:
        if self.counted_by == "none" and self.tokens_out is not None:
            raise ValueError("tokens_out is counted although counted_by is none")
        if self.spec_accepted is not None and self.spec_accepted > (self.spec_proposed or 0):
            raise ValueError("spec_accepted exceeds spec_proposed")
