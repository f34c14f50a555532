"""The parts of a gateway put together and taken apart in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.console import note
from mesh.cli.governed import blueprints_of, of_lineage, under_words
from mesh.cli.launched import as_launched, check_started
from mesh.cli.meters import open_meters
from mesh.cli.specs import NO_METER, EngineSpec, MeterSpec
from mesh.cli.starting import check_files, start_engine
from mesh.cli.state import State
from mesh.engine.protocol import shard_route_of
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.steward.steward import Steward

if TYPE_CHECKING:
    from mesh.engine.protocol import ServingEngine
    from mesh.ledger.blueprints import ServedUnder
    from mesh.schema.envelope import Sealed, SigningKey


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
    allow_lower: bool = False,
) -> AsyncIterator[Assembly]:
    """A steward with its ledger, meters and running engines. A ledger that is there opens before an engine loads, so
    that a second process on one key, or a ledger that contradicts itself, is found before anything is spent. A new key
    and ledger are made once the engines run, so that a model that nobody can load leaves nothing behind. A lower
    revision of a blueprint is refused unless `allow_lower`, which is then noted and written into the ledger. `launches`
    are the records of how the backends were launched, in their order."""
    for spec in specs:
        check_files(spec)
    paths = [*launches, *[None] * len(specs)][: len(specs)]
    under = [None if path is None else as_launched(spec, path) for spec, path in zip(specs, paths, strict=True)]
    specs = [spec if found is None else found[0] for spec, found in zip(specs, under, strict=True)]
    async with AsyncExitStack() as running:
        opened = starts = None
        if state.begun:
            opened = running.enter_context(_opened(state, note))
            starts = _starts(opened[1], specs, allow_lower=allow_lower)
        else:
            state.check_place()
        engines = []
        launched = {}
        for spec, found, path in zip(specs, under, paths, strict=True):
            engine = await start_engine(spec, cpu_watts_u=meter.cpu_watts_u)
            running.push_async_callback(engine.close)
            engines.append(engine)
            if found is not None and path is not None:
                check_started(engine, spec, found[1], path)
                launched[engine.recipe_id] = bytes(found[1].digest)
        metered = await open_meters(meter, list(zip(specs, engines, strict=True)), os.environ)
        for one in metered.meters:
            running.callback(one.close)
        key, ledger = opened or running.enter_context(_opened(state, note))
        if starts is None:
            starts = _starts(ledger, specs, allow_lower=allow_lower)
        metering = Metering(metered.meters)
        running.callback(metering.close)
        metering.start()
        steward = Steward(key=key, ledger=ledger, metering=metering, keep_ns=keep_ns, launches=launched)
        recovered = await steward.recover()
        await steward.checkpoint()
        running.push_async_callback(steward.close)
        for start in starts:
            ledger.serve_under(start).result()
            note(under_words(start))
        yield Assembly(engines, steward, recovered, metered.notes)


def engine_notes(engines: Sequence[ServingEngine]) -> list[str]:
    """What an operator should know of engines that run, a line each."""
    out = []
    for engine in engines:
        check = getattr(engine, "self_check", None)
        if check is not None:
            out.append(f"determinism of {engine.recipe_id}: {check.reason}")
        parts = engine.settings.get("pipeline_parallel", 1)
        if parts > 1 and shard_route_of(engine) is None:
            out.append(
                f"layers of {engine.recipe_id}: its server divides them {parts} ways, and nobody looked at who has "
                "which: where that is over several hosts, --route holds each of them to the model"
            )
    return out


def _starts(ledger: Ledger, specs: Sequence[EngineSpec], *, allow_lower: bool) -> list[ServedUnder]:
    return [of_lineage(ledger.reader, one, allow=allow_lower) for one in blueprints_of(specs)]


@contextmanager
def _opened(state: State, note: Callable[[str], None]) -> Iterator[tuple[SigningKey, Ledger]]:
    """The key and its ledger, made where they are not there."""
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
        yield key, ledger
