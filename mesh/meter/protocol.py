"""What the mesh asks of a meter: cumulative counters per domain, and nothing else.

A meter knows no serves, no tokens and no prices. It is read by one thread at a time, which `Metering` sees to. What a
counter cannot say is said by a reason, a short token such as `permission-denied`: never by 0, and never by a guess in
the place of a reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mesh.errors import MeterError
from mesh.schema.limits import MAX_UINT
from mesh.schema.record import Record
from mesh.schema.value import Name, Token, fits


@dataclass(frozen=True, slots=True)
class Domain:
    """One counter. Domains of one process must be disjoint: what one counts, no other counts.

    `name` and `method` are sealed into receipts; `resolution_ns` is how often the counter was seen to move.
    `engines` are the recipe ids whose work it counts, None for all. `modelled` where a model stands between what is
    read and the joules, so that no share of it is ever called measured. Raises MeterError for a name that a receipt
    could not hold.
    """

    name: str
    method: str
    resolution_ns: int
    engines: frozenset[str] | None
    modelled: bool

    def __post_init__(self) -> None:
        for field, text in (("name", self.name), ("method", self.method)):
            if not is_name(text):
                raise MeterError(f"meter domain {self.name!r}: {field} is not a printable name, got {text!r}")
        if not 0 <= self.resolution_ns <= MAX_UINT:
            raise MeterError(f"meter domain {self.name!r}: resolution_ns is out of range, got {self.resolution_ns}")

    def covers(self, recipe_id: str) -> bool:
        return self.engines is None or recipe_id in self.engines


class Reading(Record):
    """One look at one counter: `uj` cumulative microjoules at `at_ns` (monotonic clock); None where it cannot be read,
    and `reason` then says why.

    `reset`: the counter does not continue the reading before it (driver reloaded, wrapped an unknown number of times);
    the epoch ends. A counter that falls says so by itself.
    `gap`: it continues, but something since the reading before may have gone uncounted (a process died between two
    readings); that stretch is not covered.
    """

    domain: str
    at_ns: int
    uj: int | None
    reason: str | None = None
    reset: bool = False
    gap: bool = False


class EnergyMeter(Protocol):
    """A set of counters. The domains are the same for as long as the meter lives: a device that goes away, or was never
    readable, stays a domain whose readings carry a reason.

    `interval_ns` is how often it wants to be read while serves run: what a serve began and ended with is read anew
    anyway, so a counter that cannot lose anything in between may be looked at seldom.

    `prompt` where a look is a few system calls that wait for no device and no other process: it may be taken by
    whoever needs one, on an event loop too, which costs a fifth of having a thread take it."""

    interval_ns: int
    prompt: bool

    def domains(self) -> Sequence[Domain]: ...

    def read(self) -> Sequence[Reading]:
        """One reading per domain, now. Asked by one thread at a time, and only ever by the meter thread where it may
        block. Raises nothing for a device that is missing or refuses: that is a Reading with a reason."""
        ...

    def close(self) -> None: ...


def is_name(text: object) -> bool:
    """Whether a receipt can hold this as a name."""
    return fits(text, Name)


def is_reason(text: object) -> bool:
    """Whether a receipt can hold this as a reason."""
    return fits(text, Token)
