"""Two hundred serves of one engine at once: their receipts, what was idle and what is nobody's make up the CPU time of
the engine's process, as somebody else reads it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.request import prompt_hash_of_ids
from mesh.steward.serves import SealedServe
from mesh.steward.steward import Steward
from tests.support.stewards import KEY, Client, request, running
from tests.support.tiny_gguf import write_tiny_gguf

SERVES = 200
PROMPT = tuple(range(10, 26))
TICK_UJ = 10**6
WATTS_U = TICK_UJ * os.sysconf("SC_CLK_TCK")  # so that a tick of CPU time is one joule


def ticks(pid: int) -> int:
    times = psutil.Process(pid).cpu_times()
    return round((times.user + times.system) * os.sysconf("SC_CLK_TCK"))


async def serve(steward: Steward, engine: GgufEngine, number: int) -> None:
    """One of three leaves in the middle."""
    client = Client(leave_after=5 if number % 3 == 0 else None)
    hashed = prompt_hash_of_ids(PROMPT, bytes(32))
    wanted = request(max_tokens=12, prompt_hash=hashed, prompt_tokens=len(PROMPT))
    admitted = await steward.admit(wanted, [engine], caller="caller")
    done = await steward.serve(admitted, PROMPT, client, serve_id=steward.new_serve_id())
    assert isinstance(done, SealedServe)
    assert done.error is None


@pytest.mark.deep
def test_two_hundred_serves_at_once_add_up_to_the_cpu_time_of_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny"))
        try:
            assert engine.pid is not None
            meter = CpuTimeMeter("tiny", lambda: engine.pid, WATTS_U)
            (tmp_path / "state").mkdir()
            async with running(tmp_path / "state", meters=[meter]) as steward:
                await asyncio.gather(*(serve(steward, engine, number) for number in range(SERVES)))
                checkpoint = (await steward.checkpoint()).value
                spent = ticks(engine.pid)
                entries = list(steward.reader.receipts())
            receipts = [verify(entry.envelope, RECEIPT_TYPE, {KEY.public}).value for entry in entries]
            assert len(receipts) == SERVES
            (row,) = checkpoint.domains
            energies = [receipt.energy for receipt in receipts]
            assert {energy.basis for energy in energies} <= {"modelled", "unresolved"}
            assert max(energy.peak_sharers or 1 for energy in energies) > 1
            shares = sum(source.uj for energy in energies for source in energy.sources)
            assert row.open_uj == 0
            # to the microjoule in the books, and within one tick of what another reads
            assert row.last_uj - row.first_uj == shares + row.idle_uj + row.unattributed_uj
            assert abs(row.last_uj // TICK_UJ - spent) <= 1
            assert shares > 0
        finally:
            await engine.close()

    asyncio.run(main())
