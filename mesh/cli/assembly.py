"""The parts of a gateway put together and taken apart in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh.cli.console import note
from mesh.cli.engines import EngineSpec, engine_pid, start_engine
from mesh.cli.state import State
from mesh.ledger import Ledger
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.steward import keys
from mesh.steward.steward import Steward

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine
    from mesh.schema.envelope import Sealed


@dataclass(frozen=True, slots=True)
class Assembly:
    engine: ServingEngine
    steward: Steward
    recovered: list[Sealed]


@asynccontextmanager
async def assembled(state: State, spec: EngineSpec, *, keep_ns: int | None = None) -> AsyncIterator[Assembly]:
    """A steward with its ledger, meters and one running engine. The ledger opens before the engine loads, so that a
    second process on one key, or a ledger that contradicts itself, is found before anything is spent."""
    key = keys.load_or_create(state.key)
    with Ledger.open(state.ledger, steward=key.public) as ledger:
        if ledger.moved:
            note(
                "this ledger was copied, restored or moved since it was last open: if the original still seals, "
                "the two logs fork, and anyone who sees both can prove it"
            )
        if ledger.torn is not None:
            note(f"a crash left a half-written record, set aside in {ledger.torn}")
        engine = await start_engine(spec)
        try:
            meters = []
            if spec.cpu_watts_u is not None:
                meters.append(CpuTimeMeter(engine.recipe_id, engine_pid(engine), spec.cpu_watts_u))
            metering = Metering(meters)
            try:
                metering.start()
                steward = Steward(key=key, ledger=ledger, metering=metering, keep_ns=keep_ns)
                recovered = await steward.recover()
                await steward.checkpoint()
                try:
                    yield Assembly(engine, steward, recovered)
                finally:
                    await steward.close()
            finally:
                metering.close()
        finally:
            await engine.close()
