"""Serves of one engine on the processor and two cards at once: three counters, one figure, and each adds up alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pynvml

from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.nvml import NvmlMeter, Wanted, find_cards
from mesh.schema.checkpoint import DomainTotals
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.receipt import Receipt
from tests.gateway.serving import House, Scripted, house, script
from tests.support.nvml import StubHost

AA, BB = "GPU-aa000000-0000", "GPU-bb000000-0000"
CPU = "cpu-time:scripted"
NAMES = [CPU, f"gpu:{AA}", f"gpu:{BB}"]
WATTS_U = 10 * 10**6


def cards() -> NvmlMeter:
    found, reason = find_cards()
    assert reason is None
    return NvmlMeter([Wanted(str(card.index), card, frozenset({"scripted"})) for card in found])


async def served(gate: House, engine: Scripted, count: int, work: Any) -> list[Receipt]:
    """`count` serves that run together while `work` is done, and their receipts."""
    asked = [asyncio.ensure_future(gate.post(script())) for _ in range(count)]
    async with asyncio.timeout(60):
        while engine.holding < count:
            await engine.held.wait()
            await asyncio.sleep(0.001)
    await asyncio.to_thread(work)
    engine.go.set()
    replies = await asyncio.gather(*asked)
    assert [reply.status for reply in replies] == [200] * count
    entries = list(gate.steward.reader.receipts())
    return [verify(entry.envelope, RECEIPT_TYPE, {gate.steward.public}).value for entry in entries]


def held(row: DomainTotals, receipts: list[Receipt]) -> int:
    """What this domain's receipts, idle time and nobody's shares come to."""
    shares = [source.uj for receipt in receipts for source in receipt.energy.sources if source.domain == row.domain]
    return sum(shares) + row.idle_uj + row.unattributed_uj + row.open_uj


def test_serves_on_the_processor_and_two_cards_add_up_on_each(tmp_path: Path, nvml: StubHost, worker: Any) -> None:
    # a card counts on by so much whenever it is looked at, so that its resolution is seen
    nvml.add(AA, energy_mj=81_250, step_mj=300)
    nvml.add(BB, energy_mj=7, step_mj=1)
    engine = Scripted([b"a", b"b"], hold_at=1, slots=4)

    async def main() -> None:
        meters = [CpuTimeMeter("scripted", lambda: worker.pid, WATTS_U), cards()]
        async with house(tmp_path, engine, meters=meters) as gate:
            receipts = await served(gate, engine, 3, lambda: worker.do("burn", 0.3))
            checkpoint = (await gate.steward.checkpoint()).value
            assert [row.domain for row in checkpoint.domains] == NAMES
            for receipt in receipts:
                energy = receipt.energy
                assert (energy.basis, energy.rule) == ("modelled", "equal/1")  # the weakest of the three
                assert energy.peak_sharers == 3
                assert [source.domain for source in energy.sources] == NAMES
                assert [source.method for source in energy.sources] == ["cpu-time@10W", "nvml-total", "nvml-total"]
                assert energy.uj == sum(source.uj for source in energy.sources)
                assert energy.epoch == checkpoint.epoch
            for row in checkpoint.domains:
                assert row.last_uj - row.first_uj == held(row, receipts)
            # what the worker burnt, in whole ticks of 0.1 J each
            cpu = sum(source.uj for receipt in receipts for source in receipt.energy.sources[:1])
            assert cpu >= 2_000_000

    asyncio.run(main())


def test_card_that_is_lost_takes_the_figure_and_not_the_others_books(
    tmp_path: Path, nvml: StubHost, worker: Any
) -> None:
    nvml.add(AA, energy_mj=81_250, step_mj=300)
    lost = nvml.add(BB, energy_mj=7, step_mj=1)
    engine = Scripted([b"a", b"b"], hold_at=1, slots=4)

    def work() -> None:
        worker.do("burn", 0.1)
        lost.energy_error = pynvml.NVML_ERROR_GPU_IS_LOST

    async def main() -> None:
        meters = [CpuTimeMeter("scripted", lambda: worker.pid, WATTS_U), cards()]
        async with house(tmp_path, engine, meters=meters) as gate:
            receipts = await served(gate, engine, 2, work)
            checkpoint = (await gate.steward.checkpoint()).value
            for receipt in receipts:
                energy = receipt.energy
                assert (energy.basis, energy.reason, energy.uj, energy.sources) == (
                    "absent", "nvml-gpu-is-lost", None, [],
                )  # fmt: skip
            for row in checkpoint.domains:
                assert row.last_uj - row.first_uj == held(row, receipts)
                assert row.unattributed_uj > 0 or row.domain == f"gpu:{BB}"

    asyncio.run(main())
