"""What is asked of the meter thread, and how whoever asked is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from mesh.meter.looking import Look
from mesh.meter.sharing import Cover
from mesh.schema.energy import Energy


class Late:
    """No reading came in time."""


LATE = Late()
Figure = Energy | Late | None
Future = asyncio.Future[Figure] | Look


@dataclass(slots=True)
class Ask:
    """`future` gets the Energy of an `end`, None of a `begin` and a `look`; a `discard` has nobody waiting."""

    what: Literal["begin", "end", "discard", "look"]
    serve_id: bytes
    at_ns: int
    cover: Cover | None = None
    keep: bool = True
    future: Future | None = None
    guard_until_ns: int = 0


Answer = tuple[Future, Figure]


def deliver(done: list[Answer]) -> None:
    """Resolve futures on their own loops, one call into each."""
    loops: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in done:
        loops.setdefault(answer[0].get_loop(), []).append(answer)
    for loop, batch in loops.items():
        # A loop that was closed while its serves waited has nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, batch)


def resolve(batch: Sequence[Answer]) -> None:
    for future, energy in batch:
        if not future.done():
            future.set_result(energy)
