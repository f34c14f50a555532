"""No answer, and no refusal, leaves its request to the collector: without circles it is free at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.reference import ReferenceEngine
from tests.gateway.serving import (
    CHAT,
    DECIDE,
    TEXT,
    Deciding,
    House,
    Reply,
    Scripted,
    ask,
    house,
    question,
    raw_request,
    script,
)
from tests.support.vllm_engines import served_by

TIMES = 3
OURS = ("mesh.gateway.", "mesh.steward.", "mesh.engine.")
MESSAGES = [{"role": "user", "content": "hello"}]


@contextmanager
def kept_out() -> Iterator[list[str]]:
    """No collection inside. At its end: the kinds of our objects that only a collection would have freed."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(one) for one in gc.garbage}
        found += sorted(kind.__qualname__ for kind in kinds if kind.__module__.startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def circles(gate: House, body: dict[str, Any], path: str, status: int) -> list[str]:
    async def asked() -> Reply:
        reply = await gate.post(body, path=path)
        assert reply.status == status, reply.body
        return reply

    await asked()  # the first of a kind fills what is kept
    with kept_out() as found:
        for _ in range(TIMES):
            await asked()
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (ask(), CHAT, 200),
        (ask(stream=True), CHAT, 200),
        (ask(n=2, seed=1, temperature=1), CHAT, 200),
        (ask(temperature="hot"), CHAT, 400),
        (ask(model="unknown"), CHAT, 404),
        (ask(max_tokens=10**9), CHAT, 400),
    ],
    ids=["plain", "streamed", "two choices", "bad field", "unknown model", "too long"],
)
def test_answer_of_a_local_engine_leaves_none(tmp_path: Path, body: dict[str, Any], path: str, status: int) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine()) as gate:
            assert await circles(gate, body, path, status) == []

    asyncio.run(main())


def test_decision_leaves_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Deciding()) as gate:
            assert await circles(gate, question(), DECIDE, 200) == []

    asyncio.run(main())


def test_client_that_leaves_leaves_none(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"word "] * 9, hold_at=3)
        async with house(tmp_path, engine) as gate:

            async def left(serves: int) -> None:
                engine.held.clear()
                reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
                writer.write(raw_request(script(stream=True, max_tokens=9)))
                await reader.readuntil(b"word ")
                await engine.held.wait()
                writer.transport.abort()
                await gate.last_receipt(serves)

            await left(1)
            with kept_out() as found:
                for serves in range(2, 2 + TIMES):
                    await left(serves)
                await asyncio.sleep(0)
            assert found == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        ({"prompt": "hello"}, TEXT, 200),
        ({"prompt": "hello", "stream": True}, TEXT, 200),
        ({"prompt": "hello", "logprobs": 1}, TEXT, 200),
        ({"messages": MESSAGES}, CHAT, 200),
        ({"prompt": "word " * 9000}, TEXT, 400),
    ],
    ids=["plain", "streamed", "scored", "chat", "longer than the context"],
)
def test_answer_of_a_server_leaves_none(tmp_path: Path, fields: dict[str, Any], path: str, status: int) -> None:
    async def main() -> None:
        async with served_by(tmp_path) as (_, engine), house(tmp_path / "state", engine) as gate:  # type: ignore[arg-type]
            body = {"model": engine.recipe_id, "max_tokens": 8} | fields
            assert await circles(gate, body, path, status) == []

    asyncio.run(main())
