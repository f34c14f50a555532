"""`mesh serve` as an operator runs it: told to stop, and asked for far more than it has."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from mesh.ledger import LedgerReader
from mesh.schema.envelope import RECEIPT_TYPE, verify
from mesh.schema.receipt import Receipt
from tests.gateway.serving import CHAT, ask
from tests.support.processes import Served, served

REFERENCE = '[state]\ndir = "state"\n[[backend]]\nkind = "reference"\n'
LONG = 200_000  # tokens: far longer than a test waits
MIB = 1 << 20


def receipts(folder: Path) -> list[Receipt]:
    with LedgerReader.open(folder / "state" / "ledger.sqlite") as reader:
        trust = {reader.steward()}
        assert reader.open_intents() == []
        return [verify(entry.envelope, RECEIPT_TYPE, trust).value for entry in reader.receipts()]


async def stream_until_signalled(gate: Served, max_tokens: int, *signals: signal.Signals) -> str:
    """A stream during which the server is told to stop, to its end."""
    async with (
        aiohttp.ClientSession(gate.url, timeout=aiohttp.ClientTimeout(total=120)) as http,
        http.post(CHAT, json=ask(stream=True, max_tokens=max_tokens)) as response,
    ):
        said = await response.content.readuntil(b" w")
        for number in signals:
            gate.process.send_signal(number)
        return (said + await response.content.read()).decode()


@pytest.mark.parametrize("flags", [[], ["--uvloop"]])
def test_stop_lets_a_stream_end(tmp_path: Path, flags: list[str]) -> None:
    with served(tmp_path, "[gateway]\ndrain_s = 600\n" + REFERENCE, *flags) as gate:
        said = asyncio.run(stream_until_signalled(gate, 2000, signal.SIGTERM))
        assert said.endswith("data: [DONE]\n\n")
        assert gate.process.wait() == 0
    (receipt,) = receipts(tmp_path)
    assert (receipt.outcome.finish, receipt.outcome.tokens_out) == ("length", 2000)


@pytest.mark.parametrize(
    ("drain_s", "signals"), [(1, [signal.SIGTERM]), (600, [signal.SIGINT, signal.SIGTERM])], ids=["time", "second"]
)
def test_stop_cuts_a_stream_when_its_time_is_over_or_at_a_second_signal(
    tmp_path: Path, drain_s: int, signals: list[signal.Signals]
) -> None:
    with served(tmp_path, f"[gateway]\ndrain_s = {drain_s}\n{REFERENCE}") as gate:
        said = asyncio.run(stream_until_signalled(gate, LONG, *signals))
        assert "engine-unavailable" in said
        assert "[DONE]" not in said
        assert gate.process.wait() == 0
    (receipt,) = receipts(tmp_path)
    assert (receipt.outcome.finish, receipt.outcome.reason) == ("cancelled", "shutdown")


@pytest.mark.deep
def test_memory_is_bounded_at_ten_times_the_capacity(tmp_path: Path) -> None:
    """2 serves run, 6 wait, bodies may fill 8 MiB: 80 clients come with a megabyte each, over and over."""
    config = f"[gateway]\nqueue = 6\nbody_memory_bytes = {8 * MIB}\nmax_connections = 40\n{REFERENCE}slots = 2\n"
    body = ask("x" * 900_000, max_tokens=1)

    async def client(http: aiohttp.ClientSession) -> int:
        try:
            async with http.post(CHAT, json=body) as response:
                await response.read()
                return response.status
        except aiohttp.ClientError:
            return 0  # told off while it was still sending

    async def wave(gate: Served) -> list[int]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(gate.url, connector=connector) as http:
            return await asyncio.gather(*(client(http) for _ in range(80)))

    with served(tmp_path, config) as gate:
        process = psutil.Process(gate.process.pid)
        statuses = asyncio.run(wave(gate))
        after_one = process.memory_info().rss
        for _ in range(2):
            statuses += asyncio.run(wave(gate))
        grown = process.memory_info().rss - after_one
        assert statuses.count(200) >= 3
        assert set(statuses) <= {0, 200, 429, 503}
        assert statuses.count(200) < len(statuses)
        # what all clients sent is 80 MB a wave and 240 MB in all; one wave's worst is held at any time
        assert grown < 48 * MIB, f"{grown / MIB:.0f} MiB more after two more waves"
        assert after_one < 200 * MIB
        gate.process.terminate()
        assert gate.process.wait() == 0
    assert len(receipts(tmp_path)) == statuses.count(200)


def test_log_in_json_is_one_object_a_line_and_one_line_a_serve(tmp_path: Path) -> None:
    async def main(url: str) -> list[str]:
        async with aiohttp.ClientSession(url) as http:
            serves = []
            for said in ("one", "two"):
                async with http.post(CHAT, json=ask(said)) as response:
                    serves.append(response.headers["Mesh-Serve"])
            return serves

    with served(tmp_path, REFERENCE, "--log", "json") as gate:
        serves = asyncio.run(main(gate.url))
        gate.process.terminate()
        assert gate.process.wait() == 0
        lines = [json.loads(line) for line in gate.log.read_text().splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
    told = [line for line in lines if line["logger"] == "mesh.serves"]
    assert [line["serve"] for line in told] == serves
    assert [(line["seq"], line["model"], line["finish"], line["tokens_out"]) for line in told] == [
        (0, "reference", "length", 8), (1, "reference", "length", 8),
    ]  # fmt: skip
    assert [line["status"] for line in lines if line["logger"] == "mesh.access"] == [200, 200]
