"""The parts of a gateway put together and taken apart in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import note
from mesh.cli.meters import open_meters
from mesh.cli.specs import NO_METER, EngineSpec, MeterSpec
from mesh.cli.starting import check_files, start_engine
from mesh.cli.state import State
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.steward.steward import Steward

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine
    from mesh.schema.envelope import Sealed


@dataclass(frozen=True, slots=True)
class Assembly:
    engines: list[ServingEngine]
    steward: Steward
    recovered: list[Sealed]
    meter_notes: list[str]

    @property
    def engine(self) -> ServingEngine:
        """The first of them, which is the only one where one was asked for."""
        return self.engines[0]


@asynccontextmanager
async def assembled(
    state: State,
    specs: Sequence[EngineSpec],
    *,
    meter: MeterSpec = NO_METER,
    keep_ns: int | None = None,
    launches: Sequence[Path | None] = (),
    note: Callable[[str], None] = note,
) -> AsyncIterator[Assembly]:
    """A steward with its ledger, meters and running engines. The ledger opens before an engine loads, so that a
    second process on one key, or a ledger that contradicts itself, is found before anything is spent; and what the
    engines are made from is looked at before the state is, so that a mistyped name leaves no new key behind."""
    for spec in specs:
        check_files(spec)
    digests = [None if path is None else launch_digest(path) for path in launches]
    begins_again = state.begins_again
    key = state.own_key()
    with Ledger.open(state.ledger, steward=key.public) as ledger:
        if begins_again:
            note(
                "a new ledger begins under a key that was here before: if receipts were sealed with it, their numbers "
                "are given out again, and anyone who sees both can prove it"
            )
        if ledger.moved:
            note(
                "this ledger was copied, restored or moved since it was last open: if the original still seals, "
                "the two logs fork, and anyone who sees both can prove it"
            )
        if ledger.torn is not None:
            note(f"a crash left a half-written record, set aside in {ledger.torn}")
        async with AsyncExitStack() as running:
            engines = []
            for spec in specs:
                engine = await start_engine(spec, cpu_watts_u=meter.cpu_watts_u)
                running.push_async_callback(engine.close)
                engines.append(engine)
            opened = await open_meters(meter, list(zip(specs, engines, strict=True)), os.environ)
            for one in opened.meters:
                running.callback(one.close)
            metering = Metering(opened.meters)
            running.callback(metering.close)
            metering.start()
            steward = Steward(
                key=key,
                ledger=ledger,
                metering=metering,
                keep_ns=keep_ns,
                launches={
                    engine.recipe_id: digest
                    for engine, digest in zip(engines, digests, strict=False)
                    if digest is not None
                },
            )
            recovered = await steward.recover()
            await steward.checkpoint()
            running.push_async_callback(steward.close)
            yield Assembly(engines, steward, recovered, opened.notes)


def launch_digest(path: Path) -> bytes:
    """Of a launch record, once it was checked. Raises OSError, EnvelopeError."""
    from mesh.launch.record import load_record

    return bytes(load_record(path).digest)
