"""`Idempotency-Key`: one serve, one receipt, however often it is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blake3 import blake3

from tests.gateway.serving import TEXT, Scripted, ask, house, script


@pytest.mark.parametrize("streamed", [False, True])
def test_repeated_request_gets_the_same_answer_without_a_second_serve(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scripted([b"once"])
        async with house(tmp_path, engine) as gate:
            first = await gate.post(script(stream=streamed), Idempotency_Key="k-1")
            again = await gate.post(script(stream=streamed), Idempotency_Key="k-1")
            assert (first.status, again.status, again.body) == (200, 200, first.body)
            assert again.headers["Content-Type"] == first.headers["Content-Type"]
            assert again.headers["Mesh-Serve"] == first.headers["Mesh-Serve"]
            assert again.headers["Idempotency-Replayed"] == "true"
            assert "Idempotency-Replayed" not in first.headers
            assert gate.receipt(again.headers["Mesh-Receipt"]).value.seq == 0
            assert (engine.serves, gate.steward.reader.count()) == (1, 1)
            other = await gate.post(script(stream=streamed), Idempotency_Key="k-2")
            assert (other.headers["Mesh-Serve"] != first.headers["Mesh-Serve"], engine.serves) == (True, 2)

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_answer_no_longer_held_gives_the_first_receipt(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scripted([b"once"])
        async with house(tmp_path, engine, repeat_answers=0) as gate:
            first = await gate.post(script(stream=streamed), Idempotency_Key="k")
            again = await gate.post(script(stream=streamed), Idempotency_Key="k")
            told = again.events[0] if streamed else again.json
            assert (again.status, told["object"], told["choices"]) == (200, "mesh.receipt", [])
            assert told["mesh"]["serve_id"] == again.headers["Mesh-Serve"] == first.headers["Mesh-Serve"]
            assert gate.receipt(told["mesh"]["receipt_id"]).value.seq == 0
            assert again.headers["Idempotency-Replayed"] == "true"
            assert (engine.serves, b"once" in again.body) == (1, False)

    asyncio.run(main())


def test_answer_is_not_held_after_a_restart_but_the_receipt_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"once"])) as gate:
            first = await gate.post(script(), Idempotency_Key="k")
        engine = Scripted([b"once"])
        async with house(tmp_path, engine) as gate:
            again = await gate.post(script(), Idempotency_Key="k")
            assert again.headers["Mesh-Receipt"] == first.headers["Mesh-Receipt"]
            assert (again.json["object"], engine.serves) == ("mesh.receipt", 0)

    asyncio.run(main())


@pytest.mark.parametrize("held", [0, 9])
def test_same_key_with_another_body_or_route_is_refused(tmp_path: Path, held: int) -> None:
    async def main() -> None:
        engine = Scripted([b"once"])
        async with house(tmp_path, engine, repeat_answers=held) as gate:
            await gate.post(script(), Idempotency_Key="k")
            assert (await gate.post(script("other"), Idempotency_Key="k")).code == (422, "idempotency_mismatch")
            text = {"model": "scripted", "prompt": "hello", "max_tokens": 8}
            assert (await gate.post(text, path=TEXT, Idempotency_Key="k")).code == (422, "idempotency_mismatch")
            assert (engine.serves, gate.steward.reader.count()) == (1, 1)

    asyncio.run(main())


def test_same_key_while_the_first_runs_is_a_conflict(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"slow"], hold_at=0)
        async with house(tmp_path, engine) as gate:
            first = asyncio.ensure_future(gate.post(script(), Idempotency_Key="k"))
            await engine.held.wait()
            for streamed in (False, True):
                # the body is another one where it is streamed, and the first has not ended either way
                refused = await gate.post(script(stream=streamed), Idempotency_Key="k")
                assert refused.status in (409, 422)
                assert "Mesh-Serve" not in refused.headers
            assert (await gate.post(script(), Idempotency_Key="k")).code == (409, "idempotency_in_flight")
            engine.go.set()
            assert (await first).status == 200
            assert (await gate.post(script(), Idempotency_Key="k")).body == (await first).body
            assert gate.steward.reader.count() == 1

    asyncio.run(main())


def test_client_that_left_finds_the_receipt_under_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"cut"], hold_at=1)
        async with house(tmp_path, engine) as gate:
            gone = asyncio.ensure_future(gate.post(script(), Idempotency_Key="k"))
            await engine.held.wait()
            gone.cancel()
            sealed = await gate.last_receipt(1)
            again = await gate.post(script(), Idempotency_Key="k")
            assert again.json["mesh"]["receipt_id"] == sealed.id.text
            assert sealed.value.outcome.finish == "cancelled"

    asyncio.run(main())


def test_callers_do_not_share_keys(tmp_path: Path) -> None:
    digests = ["b3:" + blake3(name.encode()).hexdigest() for name in ("one", "two")]

    async def main() -> None:
        engine = Scripted([b"mine"])
        async with house(tmp_path, engine, keys=digests) as gate:
            one = await gate.post(script(), Idempotency_Key="k", Authorization="Bearer one")
            two = await gate.post(script("other"), Idempotency_Key="k", Authorization="Bearer two")
            assert (one.status, two.status, engine.serves) == (200, 200, 2)
            assert one.headers["Mesh-Serve"] != two.headers["Mesh-Serve"]

    asyncio.run(main())


@pytest.mark.parametrize("key", ["x" * 256, "caf\u00e9", "tab\there"])
def test_key_that_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask(), Idempotency_Key=key)
            assert (reply.status, reply.error["param"]) == (400, "Idempotency-Key")

    asyncio.run(main())


def test_request_that_was_refused_does_not_use_up_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            assert (await gate.post(ask(stop=["x"]), Idempotency_Key="k")).status == 400
            assert (await gate.post(ask(), Idempotency_Key="k")).status == 200

    asyncio.run(main())
