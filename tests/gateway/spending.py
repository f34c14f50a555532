"""A gateway in a process of its own that takes grants, to be killed: `STATE SEED ISSUER METER SERVES`. It prints where
it is. METER is `lamp`, which draws a microjoule in a microsecond, or `none`. All serves after the first SERVES hang."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.gateway.grants import GrantTokens
from mesh.ledger import Ledger
from mesh.meter.metering import Metering
from mesh.schema.envelope import SigningKey
from mesh.schema.request import ServeRequest
from mesh.schema.trust import Trust
from mesh.steward.steward import Steward
from tests.support.meters import SteadyMeter

UJ_PER_TOKEN = 10**9  # more than the lamp draws, however long a serve takes
SLOTS = 32


class Hanging(ReferenceEngine):
    def __init__(self, serves: int, **options: Any) -> None:
        super().__init__(**options)
        self._left = serves

    async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
        self._left -= 1
        if self._left < 0:
            await asyncio.Event().wait()
        return await super().serve(request, prompt, sink)


async def serve(state: Path, seed: bytes, issuer: bytes, meter: str, serves: int) -> None:
    key = SigningKey(seed)
    metering = Metering([SteadyMeter("reference", 1)] if meter == "lamp" else [])
    metering.start()
    steward = Steward(key=key, ledger=Ledger.open(state / "ledger.sqlite", steward=key.public), metering=metering)
    await steward.recover()
    engine = Hanging(serves, est_uj_per_token=UJ_PER_TOKEN, slots=SLOTS)
    config = GatewayConfig(queue=2000, max_connections=2000, queue_wait_s=600, idle_timeout_s=600, body_timeout_s=600)
    gateway = Gateway(steward, [engine], config, authenticators=[GrantTokens(Trust.always([issuer]))])
    print(f"http://127.0.0.1:{await gateway.start('127.0.0.1', 0)}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    state, seed, issuer, meter, serves = sys.argv[1:]
    asyncio.run(serve(Path(state), bytes.fromhex(seed), bytes.fromhex(issuer), meter, int(serves)))
