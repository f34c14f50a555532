"""The HTTP edge (GW-12): preflights, where a key may be, and what pages of other origins may see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from blake3 import blake3

from tests.gateway.serving import CHAT, House, Reply, ask, house

KEY = "K-of-this-test"
DIGEST = "b3:" + blake3(KEY.encode()).hexdigest()
PAGE = "http://ui.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


async def options(gate: House, headers: dict[str, str], data: bytes | None = None) -> Reply:
    async with gate.http.options(CHAT, headers=headers, data=data) as response:
        return Reply(response.status, response.headers.copy(), await response.read())


def test_preflight_needs_no_key_and_runs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST], origins=[PAGE]) as gate:
            for data in (None, json.dumps(ask()).encode()):
                reply = await options(gate, ASKS, data)
                assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (204, PAGE)
                assert "POST" in reply.headers["Access-Control-Allow-Methods"]
                assert reply.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
                assert "Access-Control-Allow-Credentials" not in reply.headers
            other = await options(gate, ASKS | {"Origin": "http://evil.example"})
            assert (other.status, "Access-Control-Allow-Origin" in other.headers) == (401, False)
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


def test_page_may_read_answers_and_errors(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST], origins=[PAGE, "http://[::1]:8080"]) as gate:
            for headers, status in (({}, 401), ({"Authorization": f"Bearer {KEY}"}, 200)):
                for stream in (False, True):
                    reply = await gate.post(ask(stream=stream), Origin=PAGE, **headers)
                    assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
                    assert "Mesh-Receipt" in reply.headers["Access-Control-Expose-Headers"]
                    assert reply.headers["Vary"] == "Origin"
                    if status == 401:
                        assert reply.headers["WWW-Authenticate"] == "Bearer"
                        assert reply.code == (401, "missing_api_key")
            silent = await gate.post(ask(), Authorization=f"Bearer {KEY}")
            assert (silent.headers["Vary"], "Access-Control-Allow-Origin" in silent.headers) == ("Origin", False)

    asyncio.run(main())


def test_nobody_is_allowed_who_was_not_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await options(gate, ASKS)).status == 405
            reply = await gate.post(ask(), Origin=PAGE)
            assert (reply.status, "Vary" in reply.headers) == (200, False)
            assert "Access-Control-Allow-Origin" not in reply.headers

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"Authorization": f"BEARER  {KEY}"}, 200),
        ({"x-api-key": KEY}, 401),
        ({"api-key": KEY}, 401),
        ({"Authorization": f"Bearer {KEY}", "x-api-key": "OTHER"}, 401),
        ({"Authorization": f"Bearer {KEY.lower()}"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Basic Szo="}, 401),
        ({}, 401),
    ],
)
def test_key_has_one_place(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST]) as gate:
            reply = await gate.post(ask(), **headers)
            assert reply.status == status
            if status == 401:
                assert reply.headers["WWW-Authenticate"] == "Bearer"
                assert reply.error["type"] == "authentication_error"

    asyncio.run(main())


def test_key_in_the_address_is_no_key_and_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def main() -> None:
        async with house(tmp_path, keys=[DIGEST]) as gate:
            assert (await gate.post(ask(), path=f"{CHAT}?api_key={KEY}")).code == (401, "missing_api_key")

    asyncio.run(main())
    assert KEY not in "".join(f"{record.getMessage()} {record.__dict__.get('fields')}" for record in caplog.records)
