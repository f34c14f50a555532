"""A thousand requests at once on one total, over HTTP: never more than there is, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mesh.gateway.config import GatewayConfig
from mesh.ledger import LedgerReader, Total
from mesh.schema.envelope import RECEIPT_TYPE, SigningKey, verify
from tests.gateway.granting import CONTENT, EACH, ISSUER, ONE, STEWARD, Counting, chain_of, granting, token
from tests.gateway.serving import CHAT, ask
from tests.gateway.spending import SLOTS, UJ_PER_TOKEN
from tests.support.meters import SteadyMeter
from tests.support.processes import ROOT

CROWD, SERVES = 1000, 200
EACH_UJ = EACH * UJ_PER_TOKEN
LIMIT_UJ = SERVES * EACH_UJ + EACH_UJ - 1


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """A crowd has a connection each, and both their ends may be in one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * CROWD if hard == resource.RLIM_INFINITY else min(3 * CROWD, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Crowd:
    """Requests at once, and what came of them: a status, the caveat of a refusal, or `gone`."""

    url: str
    grant: str
    came: Counter[int | str] = field(default_factory=Counter)
    told: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ask(self, count: int) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Authorization": f"Bearer {self.grant}"}
        async with aiohttp.ClientSession(self.url, connector=connector, headers=headers) as http:
            await asyncio.gather(*(self._one(http) for _ in range(count)))

    async def _one(self, http: aiohttp.ClientSession) -> None:
        came: int | str
        try:
            async with http.post(CHAT, json=ask(CONTENT), timeout=aiohttp.ClientTimeout(total=None)) as response:
                answer: dict[str, Any] = await response.json()
                came = response.status if response.status != 403 else answer["error"]["grant"]["caveat"]
        except (aiohttp.ClientError, OSError):
            came = "gone"
        async with self.told:
            self.came[came] += 1
            self.told.notify_all()

    async def until(self, came: int | str, count: int) -> None:
        async with self.told:
            await self.told.wait_for(lambda: self.came[came] >= count)


@pytest.mark.deep
def test_a_total_admits_200_of_1000_and_is_what_their_receipts_say(tmp_path: Path) -> None:
    """None ends before every other is refused, so that it is their reservations that are counted."""

    class Holding(Counting):
        def __init__(self) -> None:
            super().__init__(weights_digest=ONE, est_uj_per_token=UJ_PER_TOKEN, slots=CROWD)
            self.go = asyncio.Event()

        async def serve(self, request: Any, prompt: Any, sink: Any) -> Any:
            self.asked.append("begun")
            await self.go.wait()
            return await super().serve(request, prompt, sink)

    async def main() -> None:
        engine = Holding()
        config = GatewayConfig(max_connections=2 * CROWD, queue=CROWD, idle_timeout_s=600, body_timeout_s=600)
        lamp = SteadyMeter("reference", 1)
        async with granting(tmp_path, engine, config=config, meters=[lamp]) as house:
            grant = token({**STEWARD, "total-uj": LIMIT_UJ})
            block = chain_of(grant).id

            def used() -> Total:
                return house.steward.reader.totals([block])[block, "total-uj"]

            crowd = Crowd(house.url, grant)
            asking = asyncio.ensure_future(crowd.ask(CROWD))
            await crowd.until("total-uj", CROWD - SERVES)
            assert used() == Total(reserved=SERVES * EACH_UJ)
            engine.go.set()
            await asking
            assert crowd.came == {200: SERVES, "total-uj": CROWD - SERVES}
            assert engine.asked.count("begun") == SERVES
            receipts = [
                verify(entry.envelope, RECEIPT_TYPE, {house.steward.public}).value
                for entry in house.steward.reader.receipts()
            ]
            assert {receipt.grant_id for receipt in receipts} == {block}
            figures = [receipt.energy.uj for receipt in receipts]
            assert len(figures) == SERVES
            assert None not in figures
            assert used() == Total(settled=sum(figures))
            assert 0 < sum(figures) <= LIMIT_UJ

    asyncio.run(main())


def test_a_total_that_is_used_up_is_refused_before_an_engine_reads_the_prompt(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Counting(weights_digest=ONE, est_uj_per_token=1)
        async with granting(tmp_path, engine) as house:
            grant = token({**STEWARD, "total-tokens": EACH})
            first = Crowd(house.url, grant)
            await first.ask(1)
            engine.asked.clear()
            then = Crowd(house.url, grant)
            await then.ask(20)
            assert (first.came, then.came) == ({200: 1}, {"total-tokens": 20})
            assert engine.asked == []

    asyncio.run(main())


@asynccontextmanager
async def spending(
    state: Path, key: SigningKey, *, meter: str, serves: int = CROWD
) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    arguments = [str(state), key.seed.hex(), ISSUER.public.hex(), meter, str(serves)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.spending", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        try:
            yield process, (await asyncio.to_thread(process.stdout.readline)).strip()
        finally:
            process.kill()


async def killed(state: Path, key: SigningKey, grant: str, *, after: int, meter: str, serves: int = CROWD) -> int:
    """Kill a gateway once so many of a crowd have their answer; returns how many had in the end."""
    async with spending(state, key, meter=meter, serves=serves) as (process, url):
        crowd = Crowd(url, grant)
        asking = asyncio.ensure_future(crowd.ask(CROWD // 4))
        await crowd.until(200, after)
        process.kill()
        await asking
        process.wait()
    return crowd.came[200]


def counted(state: Path, key: SigningKey, block: bytes) -> tuple[Total, int]:
    """What the ledger counts, once it is what the receipts and the serves that run say; and how many there are."""
    reader = LedgerReader.open(state / "ledger.sqlite")
    try:
        receipts = [verify(entry.envelope, RECEIPT_TYPE, {key.public}).value for entry in reader.receipts()]
        running = len(reader.open_intents())
        known = [receipt.energy.uj for receipt in receipts if receipt.energy.uj is not None]
        total = reader.totals([block])[block, "total-uj"]
    finally:
        reader.close()
    unknown = len(receipts) - len(known)
    assert total == Total(settled=sum(known), estimated=EACH_UJ * unknown, reserved=EACH_UJ * running)
    assert total.used <= LIMIT_UJ
    return total, len(receipts) + running


@pytest.mark.deep
def test_a_gateway_killed_in_a_crowd_gives_no_reservation_back(tmp_path: Path) -> None:
    """Nobody measures anything: what was reserved stays used up, and is told to be an estimate."""

    async def main() -> None:
        key = SigningKey(os.urandom(32))
        grant = token({"steward-in": [key.public], "total-uj": LIMIT_UJ})
        block = chain_of(grant).id
        begun = 0
        for _ in range(2):
            assert await killed(tmp_path, key, grant, after=40, meter="none", serves=40) == 40
            before, (_, begun) = begun, counted(tmp_path, key, block)
            assert 40 <= begun - before <= 40 + SLOTS  # those that hang are begun and not ended
        async with spending(tmp_path, key, meter="none") as (_, url):
            crowd = Crowd(url, grant)
            await crowd.ask(CROWD)
            assert crowd.came == {200: SERVES - begun, "total-uj": CROWD - SERVES + begun}
            bearer = {"Authorization": f"Bearer {grant}"}
            async with (
                aiohttp.ClientSession(url) as http,
                http.get("/mesh/v1/grant/balance", headers=bearer) as response,
            ):
                (told,) = (await response.json())["totals"]
        assert counted(tmp_path, key, block) == (Total(estimated=SERVES * EACH_UJ), SERVES)
        assert (int(told["estimated"]), told["settled"], told["reserved"]) == (SERVES * EACH_UJ, 0, 0)

    asyncio.run(main())


@pytest.mark.deep
def test_a_gateway_killed_in_a_crowd_counts_what_its_receipts_say(tmp_path: Path) -> None:
    async def main() -> None:
        key = SigningKey(os.urandom(32))
        grant = token({"steward-in": [key.public], "total-uj": LIMIT_UJ})
        answered = 0
        for after in (10, 50):
            answered += await killed(tmp_path, key, grant, after=after, meter="lamp")
            total, begun = counted(tmp_path, key, chain_of(grant).id)
            assert answered <= begun
            assert total.settled > 0

    asyncio.run(main())
