"""What a serve takes from a total that a block states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """`caveat` is `total-uj` or `total-tokens` of the block with this id, which is number `block` of its chain; `limit`
    is what that block states, `amount` the worst case of one serve: microjoules, or tokens in and out."""

    block: int
    block_id: bytes
    caveat: str
    limit: int
    amount: int
