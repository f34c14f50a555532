"""Many requests to one gateway from clients that leave whenever they like, and what has to be true afterwards.

`python -m bench.soak [--requests N] [--concurrency N] [--seed N]` runs a gateway on the reference engine in this
process and prints what it found as JSON; the exit code is 1 where something does not add up:

- every serve that the engine was given has exactly one receipt, the receipts are numbered without a gap, no intent is
  open, and every answer that a client got whole names a receipt that is there;
- the sums of /metrics are those of the ledger;
- no task and no descriptor is left over, and memory has not grown with the number of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.ledger import Ledger, check_sequence
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify
from mesh.schema.receipt import Receipt
from mesh.schema.request import ServeRequest
from mesh.steward.steward import Steward

_LEAVE = 0.3  # of the clients, at a random moment
_LATEST = 1.2  # times what a whole answer takes: some leave the queue, some leave in mid-answer, some too late
_MAX_TOKENS = 64
_WARM = 0.2  # of the requests, before memory is looked at for the first time
_GROWTH_BYTES = 64 << 20
_SAMPLE = re.compile(r"(mesh_[a-z_]+)\{(.*)\} ([0-9.]+)")


class _Counting(ReferenceEngine):
    """Counts the serves that it is given."""

    given = 0

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self.given += 1
        return await super().serve(request, prompt, sink)


@dataclass(slots=True)
class Report:
    """`statuses` are what clients saw, `left` those that did not stay for it. `faults` is empty where all is well."""

    requests: int
    statuses: dict[str, int]
    serves: int = 0
    receipts: int = 0
    finishes: dict[str, int] = field(default_factory=dict)
    tokens_out: int = 0
    uj: int = 0
    grown_bytes: int = 0
    faults: list[str] = field(default_factory=list)


class _Clients:
    def __init__(self, url: str, concurrency: int, seed: int) -> None:
        self._url = url
        self._concurrency = concurrency
        self._random = random.Random(seed)
        self.statuses: Counter[str] = Counter()
        self.receipts: list[str] = []
        self._mean_s = 0.05  # of a whole answer, as they come

    async def run(self, count: int) -> None:
        """Send that many requests, so many at once."""
        numbers = iter(range(count))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, connector=connector) as http:
            await asyncio.gather(*(self._worker(http, numbers) for _ in range(self._concurrency)))

    async def _worker(self, http: aiohttp.ClientSession, numbers: Any) -> None:
        for _ in numbers:
            asking = asyncio.ensure_future(self._ask(http))
            if self._random.random() >= _LEAVE:
                await asking
                continue
            await asyncio.wait([asking], timeout=self._random.uniform(0, _LATEST * self._mean_s))
            asking.cancel()
            (result,) = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(result, asyncio.CancelledError):
                self.statuses["left"] += 1

    async def _ask(self, http: aiohttp.ClientSession) -> None:
        stream = self._random.random() < 0.5
        body = {
            "model": "reference", "max_tokens": self._random.randint(1, _MAX_TOKENS), "stream": stream,
            "messages": [{"role": "user", "content": f"question {self._random.random()}"}],
        }  # fmt: skip
        began = time.perf_counter()
        async with http.post("/v1/chat/completions", json=body) as response:
            said = await response.read()
        whole = said.endswith(b"data: [DONE]\n\n") if stream else response.status == 200
        if whole:
            self._mean_s += 0.1 * (time.perf_counter() - began - self._mean_s)
            found = re.search(rb"mesh-receipt (b3:[0-9a-f]{64})", said) if stream else None
            self.receipts.append(found[1].decode() if found else response.headers["Mesh-Receipt"])
        self.statuses[str(response.status) if whole or response.status != 200 else "200, cut"] += 1


async def soak(folder: Path, requests: int, concurrency: int, seed: int) -> Report:
    tasks, descriptors = asyncio.all_tasks(), _descriptors()
    process = psutil.Process()
    engine, key = _Counting(slots=concurrency // 2, work_per_token=200), SigningKey(os.urandom(32))
    with Ledger.open(folder / "ledger.sqlite", steward=key.public) as ledger:
        metering = Metering([CpuTimeMeter("reference", os.getpid, 10_000_000)])
        metering.start()
        try:
            steward = Steward(key=key, ledger=ledger, metering=metering)
            gateway = Gateway(steward, [engine], GatewayConfig(queue=concurrency, queue_wait_s=600))
            clients = _Clients(f"http://127.0.0.1:{await gateway.start('127.0.0.1', 0)}", concurrency, seed)
            warm = int(requests * _WARM)
            await clients.run(warm)
            before = process.memory_info().rss
            await clients.run(requests - warm)
            grown = process.memory_info().rss - before
            await gateway.stop()
            report = Report(requests, dict(clients.statuses), engine.given, grown_bytes=grown)
            _check_ledger(report, steward, clients.receipts)
            _check_metrics(report, gateway.metrics.text())
            await steward.close()
        finally:
            metering.close()
    await engine.close()
    if grown > _GROWTH_BYTES:
        report.faults.append(f"memory grew by {grown >> 20} MiB over the last {requests - warm} requests")
    if left := asyncio.all_tasks() - tasks:
        report.faults.append(f"{len(left)} tasks are left over: {sorted(task.get_name() for task in left)[:5]}")
    if (now := _descriptors()) > descriptors:
        report.faults.append(f"{now - descriptors} descriptors are left over")
    return report


def _receipts(steward: Steward) -> list[Receipt]:
    trust = {steward.public}
    checked = [verify(entry.envelope, RECEIPT_TYPE, trust) for entry in steward.reader.receipts()]
    check_sequence((one.value, one.id) for one in checked)
    return [one.value for one in checked]


def _check_ledger(report: Report, steward: Steward, told: Sequence[str]) -> None:
    receipts = _receipts(steward)
    report.receipts = len(receipts)
    report.finishes = dict(Counter(one.outcome.finish for one in receipts))
    report.tokens_out = sum(one.outcome.tokens_out or 0 for one in receipts)
    report.uj = sum(one.energy.uj or 0 for one in receipts)
    if len({one.serve_id for one in receipts}) != len(receipts):
        report.faults.append("a serve has two receipts")
    if len(receipts) != report.serves:
        report.faults.append(f"the engine was given {report.serves} serves, and there are {len(receipts)} receipts")
    if steward.reader.open_intents():
        report.faults.append("an intent is still open")
    known = {f"b3:{bytes(entry.receipt_id).hex()}" for entry in steward.reader.receipts()}
    if missing := [one for one in told if one not in known]:
        report.faults.append(f"{len(missing)} answers name a receipt that is not there")
    if len(set(told)) != len(told):
        report.faults.append("two answers name one receipt")


def _check_metrics(report: Report, text: str) -> None:
    sums: Counter[str] = Counter()
    for name, labels, value in _SAMPLE.findall(text):
        what = f"{name} output" if 'kind="output"' in labels else name
        sums[what] += int(value.replace(".", "")) if "joules_total" in name or "." not in value else 0
    for what, told, summed in (
        ("serves", sums["mesh_serves_total"], report.receipts),
        ("tokens", sums["mesh_tokens_total output"], report.tokens_out),
        ("microjoules", sums["mesh_energy_joules_total"], report.uj),
        ("seals", sums["mesh_seal_seconds_count"], report.receipts),
        ("running", sums["mesh_running"], 0),
        ("waiting", sums["mesh_queue_length"], 0),
    ):
        if told != summed:
            report.faults.append(f"{what}: /metrics says {told}, expected {summed}")


def _descriptors() -> int:
    count: int = psutil.Process().num_fds()
    return count


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(soak(Path(folder), args.requests, args.concurrency, args.seed))
    print(json.dumps(asdict(report), indent=2))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
