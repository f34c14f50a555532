"""What a probe says of each thing on this machine that counts energy, or looks as if it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# `part`: it works, and what it counts is counted by another domain already.
Verdict = Literal["measured", "modelled", "absent", "part"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`meter` is the kind, `name` the domain, or what the system calls it where it is none. `reason` is the token that
    receipts would carry, None where it can be read. `words` say for people what it is and what can be done about it.
    """

    meter: str
    name: str
    verdict: Verdict
    words: str
    method: str | None = None
    resolution_ns: int | None = None
    reason: str | None = None
