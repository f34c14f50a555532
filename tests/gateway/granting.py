"""A gateway that takes grants of one issuer, and what it takes to ask it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from mesh.engine.reference import ReferenceEngine
from mesh.gateway.app import Gateway
from mesh.gateway.backends import Route
from mesh.gateway.config import GatewayConfig
from mesh.gateway.grants import GrantTokens, Revocations
from mesh.grant.chain import Chain, verify_grant
from mesh.grant.making import attenuate, issue
from mesh.grant.text import grant_from_text, grant_text
from mesh.meter.protocol import EnergyMeter
from mesh.schema.envelope import SigningKey
from mesh.schema.ids import ContentId
from mesh.schema.trust import Trust
from tests.gateway.serving import CHAT, House, Reply, ask
from tests.support.stewards import KEY, running

ISSUER = SigningKey(b"\x21" * 32)
ONE, TWO = ContentId(b"\x01" * 32), ContentId(b"\x02" * 32)
STEWARD: dict[str, Any] = {"steward-in": [KEY.public]}
CONTENT = "hi"
EACH = len("user: hi\nassistant:") + 8  # tokens of an answer to `post(..., content=CONTENT)`, its prompt too


class Counting(ReferenceEngine):
    """Remembers what it was asked to do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: list[str] = []

    async def render(self, messages: Any) -> str:
        self.asked.append("render")
        return await super().render(messages)

    async def serve(self, request: Any, prompt: Any, sink: Any) -> Any:
        self.asked.append("serve")
        return await super().serve(request, prompt, sink)


def token(*caveats: dict[str, Any], key: SigningKey = ISSUER) -> str:
    data = issue(key, caveats[0] if caveats else {}, random=os.urandom)
    for more in caveats[1:]:
        data = attenuate(verify_grant(data, {key.public}), more, random=os.urandom)
    return grant_text(data)


def chain_of(text: str) -> Chain:
    return verify_grant(grant_from_text(text), {ISSUER.public})


@asynccontextmanager
async def granting(
    folder: Path,
    *engines: ReferenceEngine,
    revoked: Path | None = None,
    keys: Sequence[str] = (),
    meters: Sequence[EnergyMeter] = (),
    config: GatewayConfig | None = None,
    **options: Any,
) -> AsyncIterator[House]:
    engines = engines or (Counting(weights_digest=ONE, est_uj_per_token=1),)
    revocations = None if revoked is None else Revocations(revoked)
    async with running(folder, meters=meters) as steward:
        tokens = GrantTokens(Trust.always([ISSUER.public]), revocations=revocations, **options)
        routes = [Route(("any",))] * len(engines)
        gateway = Gateway(
            steward, engines, config or GatewayConfig(), keys=keys, authenticators=[tokens], routes=routes
        )
        port = await gateway.start("127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}"
        try:
            async with aiohttp.ClientSession(url) as http:
                yield House(url, port, steward, gateway, http)
        finally:
            await gateway.stop()
            for engine in engines:
                await engine.close()


async def post(house: House, grant: str, path: str = CHAT, **fields: Any) -> Reply:
    return await house.post(ask(**fields), path=path, Authorization=f"Bearer {grant}")
