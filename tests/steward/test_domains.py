"""A serve on several domains, from the meters to the receipt and the checkpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.meter.recorded import FORMAT, RecordedMeter, parse_log
from mesh.schema.request import ServeRequest
from mesh.steward.serves import SealedServe
from mesh.steward.steward import Steward
from tests.support.stewards import KEY, PROMPT, Client, request

MS = 10**6
MILLIWATTS = {"cpu": 10_000, "gpu0": 30_000, "gpu1": 5_000}
ENGINES = {"cpu": ["big", "small"], "gpu0": ["big"], "gpu1": ["big"]}


def recorded() -> bytes:
    """A processor that all engines use, and two cards that one uses, each at a steady power for a second."""
    domains = [
        {"domain": name, "method": "log", "resolution_ns": MS, "modelled": False, "engines": ENGINES[name]}
        for name in MILLIWATTS
    ]
    readings = [
        {"at_ns": ms * MS, "domain": name, "uj": milliwatts * ms}
        for ms in range(0, 1000, 10)
        for name, milliwatts in MILLIWATTS.items()
    ]
    return "\n".join(map(json.dumps, [{"v": FORMAT}, *domains, *readings])).encode()


class Together(ReferenceEngine):
    """Serves that wait for one another; when all have begun, 100 ms pass."""

    begun: asyncio.Barrier
    clock: list[int]

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        if await self.begun.wait() == 0:
            self.clock[0] += 100 * MS
        await self.begun.wait()
        return await super().serve(request, prompt, sink)


def test_serve_on_a_processor_and_two_cards_adds_up_with_one_on_the_processor_alone(folder: Path) -> None:
    clock = [10**9]
    folder.mkdir()

    async def main() -> None:
        engines = [Together("big"), Together("small")]
        barrier = asyncio.Barrier(2)
        for engine in engines:
            engine.begun, engine.clock = barrier, clock
        with Ledger.open(folder / "ledger.sqlite", steward=KEY.public) as ledger:
            meter = RecordedMeter(parse_log(recorded()), monotonic_ns=lambda: clock[0])
            metering = Metering([meter], monotonic_ns=lambda: clock[0])
            metering.start()
            try:
                steward = Steward(key=KEY, ledger=ledger, metering=metering)

                async def serve(engine: Together) -> SealedServe:
                    admitted = await steward.admit(request(), [engine], caller="caller")
                    done = await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
                    assert isinstance(done, SealedServe)
                    return done

                big, small = await asyncio.gather(*map(serve, engines))
                energy = big.receipt.energy
                assert [(source.domain, source.uj) for source in energy.sources] == [
                    ("cpu", 500_000),
                    ("gpu0", 3_000_000),
                    ("gpu1", 500_000),
                ]
                assert (energy.basis, energy.uj, energy.rule, energy.window_uj, energy.peak_sharers) == (
                    "allocated", 4_000_000, "equal/1", 4_500_000, 2,
                )  # fmt: skip
                assert [(source.domain, source.uj) for source in small.receipt.energy.sources] == [("cpu", 500_000)]
                checkpoint = (await steward.checkpoint()).value
                receipts = (big.receipt, small.receipt)
                for row in checkpoint.domains:
                    shares = sum(s.uj for r in receipts for s in r.energy.sources if s.domain == row.domain)
                    assert row.last_uj - row.first_uj == shares + row.idle_uj + row.unattributed_uj + row.open_uj
                    assert (row.idle_uj, row.unattributed_uj, row.open_uj) == (0, 0, 0)
                await steward.close()
            finally:
                metering.close()

    asyncio.run(main())
