"""A steward over a real ledger, and clients and engines that behave or do not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.meter.protocol import EnergyMeter
from mesh.schema.envelope import SigningKey
from mesh.schema.request import Sampling, ServeRequest, prompt_hash_of_text
from mesh.steward.steward import Steward

PROMPT = (104, 105)


def request(*, max_tokens: int = 8, **fields: Any) -> ServeRequest:
    return ServeRequest.of(
        **{
            "prompt_hash": prompt_hash_of_text("hi", bytes(32)),
            "prompt_tokens": len(PROMPT),
            "max_tokens": max_tokens,
            "fidelity_floor": 0,
            "sampling": Sampling.greedy(),
            "nonce": bytes(32),
        }
        | fields
    )


@dataclass
class Client:
    """A sink that takes everything, and leaves after `leave_after` tokens if told so."""

    leave_after: int | None = None
    got: list[int] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    cut_by: str | None = None
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, token: int) -> None:
        self.got.append(token)
        self.first.set()
        if len(self.got) == self.leave_after:
            self.cancelled.set()

    async def settle(self) -> int:
        return len(self.got)


class Dishonest:
    """The reference engine, with what it returns passed through `change` after it was put."""

    def __init__(self, change: Callable[[Served], Served], **engine: Any) -> None:
        self._engine = ReferenceEngine(**engine)
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        return self._change(await self._engine.serve(request, prompt, sink))


def outcome(**changes: Any) -> Callable[[Served], Served]:
    """A change of the outcome's fields; None takes one away."""

    def change(served: Served) -> Served:
        fields = {**served.outcome.to_map(), **changes}
        kept = {name: value for name, value in fields.items() if value is not None}
        return replace(served, outcome=type(served.outcome).from_map(kept))

    return change


# one per test run: a ledger claims its key for the whole machine
_SEED = "MESH_TEST_SEED_" + os.environ.get("PYTEST_XDIST_WORKER", "")  # a conftest may be read before there are workers
KEY = SigningKey(os.environ.setdefault(_SEED, os.urandom(16).hex()).encode())


AnySteward = TypeVar("AnySteward", bound=Steward)


@asynccontextmanager
async def running(
    folder: Path, kind: type[AnySteward] = Steward, *, meters: Sequence[EnergyMeter] = (), **options: Any
) -> AsyncIterator[AnySteward]:
    with Ledger.open(folder / "ledger.sqlite", steward=KEY.public) as ledger:
        metering = Metering(meters)
        metering.start()
        try:
            steward = kind(key=KEY, ledger=ledger, metering=metering, **options)
            yield steward
            await steward.close()
        finally:
            metering.close()
