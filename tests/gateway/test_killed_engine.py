"""A GGUF engine whose child is killed again and again under load: everything that was started has its one receipt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.gateway.serving import House, Reply, ask, house
from tests.support.tiny_gguf import write_tiny_gguf

WORKERS = 6


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.deep)])
def test_child_killed_under_load_leaves_one_receipt_for_each_start(tmp_path: Path, kills: int) -> None:
    async def killed(gate: House, engine: GgufEngine) -> None:
        for _ in range(kills):
            await engine.until_up()
            while gate.gateway.backends.all[0].room.running < 2:
                await asyncio.sleep(0.001)
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while engine.pid == pid:
                await asyncio.sleep(0.001)

    async def worker(gate: House, number: int, done: asyncio.Event) -> list[Reply]:
        replies = []
        while not done.is_set():
            body = ask(f"question {number}", model="tiny", max_tokens=200, stream=number % 2 == 0, ignore_eos=True)
            replies.append(await gate.post(body))
            if replies[-1].status == 503:
                await asyncio.sleep(0.01)
        return replies

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny", slots=2))
        async with house(tmp_path / "state", engine) as gate:
            done = asyncio.Event()
            workers = [asyncio.ensure_future(worker(gate, number, done)) for number in range(WORKERS)]
            await killed(gate, engine)
            await engine.until_up()
            done.set()
            replies = [reply for one in await asyncio.gather(*workers) for reply in one]
            assert {reply.status for reply in replies} <= {200, 502, 503}
            started = [
                reply.headers["Mesh-Serve"].replace("-", "") for reply in replies if "Mesh-Serve" in reply.headers
            ]
            entries = list(gate.steward.reader.receipts())
            assert Counter(entry.serve_id.hex() for entry in entries) == Counter(started)
            assert gate.steward.reader.open_intents() == []
            finishes = Counter(gate.receipt(f"b3:{entry.receipt_id.hex()}").value.outcome.finish for entry in entries)
            assert finishes["engine-error"] >= kills
            assert finishes.keys() <= {"engine-error", "length"}
            assert gate.gateway.backends.all[0].room.running == 0
            assert (await gate.post(ask(model="tiny", max_tokens=3))).status == 200

    asyncio.run(main())


def test_client_that_leaves_a_real_engine_stops_it(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "tiny", slots=2))
        async with house(tmp_path / "state", engine) as gate:
            for stream in (True, False):
                while gate.gateway.backends.all[0].room.running:  # the last receipt is there before its slot is
                    await asyncio.sleep(0.001)
                count = gate.steward.reader.count()
                body = ask(model="tiny", max_tokens=1900, stream=stream, ignore_eos=True)
                asking = asyncio.ensure_future(gate.post(body))
                # a place is not yet a serve: one that leaves before its intent has no receipt
                async with asyncio.timeout(60):
                    while not gate.steward.reader.open_intents():
                        await asyncio.sleep(0.001)
                asking.cancel()
                outcome = (await gate.last_receipt(count + 1)).value.outcome
                assert (outcome.finish, outcome.reason) == ("cancelled", "client-gone")
                assert outcome.tokens_out < 1900

    asyncio.run(main())
