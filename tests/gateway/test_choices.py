"""`n` answers are `n` serves: each with its receipt, its seed and its place in the stream."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.gateway.answering import Answering
from mesh.replay.replayer import replay
from mesh.schema.disclosure import Disclosure
from mesh.schema.limits import MAX_SEED
from mesh.schema.outcome import ServeOutcome
from mesh.schema.request import ServeRequest
from tests.gateway.serving import NONCE, TEXT, Ahead, Reply, Scripted, ask, house, run_ahead, script

FIXED = {"mesh": {"nonce": NONCE, "disclose": True}}


class Seeded(Scripted):
    """Says its seed, one digit a token, and counts how many run at once: the first ones wait for their company."""

    running = most = 0

    def __init__(self, company: int = 1, **engine: Any) -> None:
        super().__init__([str(digit).encode() for digit in range(10)], **engine)
        self._company, self._complete = company, asyncio.Event()

    async def serve(self, request: ServeRequest, prompt: Any, sink: TokenSink) -> Served:
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running >= self._company:
            self._complete.set()
        await asyncio.wait_for(self._complete.wait(), 60)
        made = []
        for digit in map(int, str(request.sampling.seed)):
            await asyncio.sleep(0)
            made.append(digit)
            sink.put(digit)
        self.running -= 1
        told = ServeOutcome.of(finish="stop", counted_by="engine", tokens_in=len(prompt), tokens_out=len(made))
        return Served(tuple(made), told)


def texts(reply: Reply) -> dict[int, str]:
    """The text of each choice, plain or streamed."""
    said: dict[int, str] = {}
    for event in reply.events if b"data: " in reply.body else [reply.json]:
        for choice in event["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            said[choice["index"]] = said.get(choice["index"], "") + (part.get("content") or part.get("text") or "")
    return said


def told(reply: Reply) -> list[Any]:
    """The `mesh` objects of the choices, by index."""
    if b"data: " not in reply.body:
        choices: list[Any] = reply.json["mesh"]["choices"]
        return choices
    return sorted((event["mesh"] for event in reply.events if "mesh" in event), key=lambda mesh: mesh["index"])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_each_choice_has_a_seed_and_a_receipt_of_its_own(tmp_path: Path, streamed: bool, slots: int) -> None:
    async def main() -> None:
        engine = Seeded(min(slots, 4), slots=slots)
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(script(n=4, seed=MAX_SEED - 1, stream=streamed, max_tokens=20, **FIXED))
            seeds = [MAX_SEED - 1, MAX_SEED, 0, 1]
            assert texts(reply) == {index: str(seed) for index, seed in enumerate(seeds)}
            meshes = told(reply)
            assert [mesh["index"] for mesh in meshes] == [0, 1, 2, 3]
            assert reply.headers["Mesh-Serve"].split(", ") == [mesh["serve_id"] for mesh in meshes]
            for mesh, seed in zip(meshes, seeds, strict=True):
                disclosure = Disclosure.from_bytes(base64.urlsafe_b64decode(mesh["disclosure"] + "=="))
                assert disclosure.request.sampling.seed == seed
                assert gate.receipt(mesh["receipt_id"]).value.request_id == disclosure.request.id
            assert gate.steward.reader.count() == 4
            assert engine.most == min(slots, 4)
            assert (await gate.post(script(max_tokens=20))).status == 200  # the slots are all there again

    asyncio.run(main())


@pytest.mark.parametrize("path", ["chat", "text"])
def test_usage_counts_the_prompt_once_and_every_choice(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            one: dict[str, Any] = ask() if path == "chat" else {"model": "reference", "prompt": "hi", "max_tokens": 8}
            where = {} if path == "chat" else {"path": TEXT}
            single = (await gate.post(one, **where)).json["usage"]
            plain = (await gate.post({**one, "n": 3}, **where)).json["usage"]
            stream = {"stream": True, "stream_options": {"include_usage": True}}
            streamed = await gate.post({**one, "n": 3, **stream}, **where)
            assert plain["prompt_tokens"] == single["prompt_tokens"]
            assert plain["completion_tokens"] == 3 * single["completion_tokens"] == 24
            assert [event["usage"]["completion_tokens"] for event in streamed.events if "usage" in event] == [24]

    asyncio.run(main())


def test_openai_sdk_reads_choices_and_each_replays(tmp_path: Path) -> None:
    async def main() -> None:
        engine = ReferenceEngine()
        async with house(tmp_path, engine) as gate, gate.sdk() as client:
            call: Any = {**ask(), "n": 2, "seed": 5, "extra_body": FIXED}
            answer = await client.chat.completions.create(**{k: v for k, v in call.items() if k != "mesh"})
            assert [choice.index for choice in answer.choices] == [0, 1]
            for mesh in answer.mesh["choices"]:
                disclosure = Disclosure.from_bytes(base64.urlsafe_b64decode(mesh["disclosure"] + "=="))
                sealed = gate.receipt(mesh["receipt_id"])
                verdict = await replay(sealed.envelope, disclosure, engine, {gate.steward.public})
                assert (verdict.kind, verdict.output) == ("verified", "matches")

    asyncio.run(main())


def test_openai_sdk_streaming_helper_reads_choices(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Seeded()) as gate, gate.sdk() as client:
            async with client.chat.completions.stream(**script(n=2, seed=55, max_tokens=20)) as helper:
                deltas = [event.chunk.choices[0].index async for event in helper if event.type == "chunk"]
                final = await helper.get_final_completion()
            assert set(deltas) == {0, 1}
            assert [choice.message.content for choice in final.choices] == ["55", "56"]

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_choice_that_fails_ends_the_request_and_all_that_began_is_sealed(tmp_path: Path, streamed: bool) -> None:
    class Failing(Seeded):
        async def serve(self, request: ServeRequest, prompt: Any, sink: TokenSink) -> Served:
            if request.sampling.seed == 8:
                raise RuntimeError("seed 8")
            sink.put(1)
            await sink.cancelled.wait()
            outcome = ServeOutcome.of(finish="cancelled", counted_by="engine", tokens_in=len(prompt), tokens_out=1)
            return Served((1,), outcome)

    async def main() -> None:
        async with house(tmp_path, Failing(slots=2)) as gate:
            reply = await gate.post(script(n=4, seed=7, stream=streamed))
            error = reply.events[-1]["error"] if streamed else reply.error
            assert error["code"] == "engine-failed"
            assert (reply.status, b"[DONE]" in reply.body) == (200 if streamed else 502, False)
            while gate.gateway._completions._running:
                await asyncio.sleep(0)
            assert gate.steward.reader.count() == 2  # the other two never began
            serves = reply.headers["Mesh-Serve"].split(", ")[:2]
            assert [gate.receipt(serve).value.outcome.reason for serve in serves] == ["other-choice", "engine-failed"]

    asyncio.run(main())


def test_choices_are_called_off_together_at_the_deadline(tmp_path: Path) -> None:
    async def main(loop: Ahead) -> None:
        engine = Scripted([b"x"] * 5, hold_at=1, slots=2)
        async with house(tmp_path, engine) as gate:
            gate.gateway._completions._clock = loop.time
            asking = asyncio.ensure_future(gate.post(script(n=3, mesh={"deadline_s": 60})))
            while engine.holding < 2:
                await asyncio.sleep(0.001)
            loop.ahead += 60
            reply = await asking
            assert reply.code == (504, "deadline_exceeded")
            assert (engine.serves, gate.steward.reader.count()) == (2, 2)  # the third never began
            serves = reply.headers["Mesh-Serve"].split(", ")[:2]
            assert [gate.receipt(serve).value.outcome.reason for serve in serves] == ["deadline", "deadline"]

    run_ahead(main)


def test_choices_stay_where_they_were_placed(tmp_path: Path) -> None:
    async def main() -> None:
        engines = [Scripted([b"x"], recipe_id=name, die_at=0) for name in "ab"]
        async with house(tmp_path, engines[0], others=engines[1:], shared="both") as gate:
            reply = await gate.post(script(n=2) | {"model": "both"})
            assert reply.code == (502, "engine-failed")
            assert sorted(engine.serves for engine in engines)[0] == 0

    asyncio.run(main())


# GW-04
@pytest.mark.parametrize("streamed", [False, True])
def test_client_that_leaves_stops_its_choices_and_begins_no_more(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scripted([b"x"] * 50, hold_at=2, slots=2)
        async with house(tmp_path, engine) as gate:
            asking = asyncio.ensure_future(gate.post(script(n=5, stream=streamed, max_tokens=60)))
            while engine.holding < 2:
                await asyncio.sleep(0)
            asking.cancel()
            newest = await gate.last_receipt(2)
            assert newest.value.outcome.finish == "cancelled"
            while gate.gateway._completions._running:
                await asyncio.sleep(0)
            assert (engine.serves, gate.steward.reader.count()) == (2, 2)
            assert gate.gateway.backends.all[0].room.running == 0

    asyncio.run(main())


def test_idempotent_choices_are_served_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(*, held: bool, folder: Path) -> None:
        engine = Seeded()
        async with house(folder, engine) as gate:
            body = script(n=3, seed=1, **FIXED)
            first = await gate.post(body, Idempotency_Key="a key")
            again = await gate.post(body, Idempotency_Key="a key")
            assert gate.steward.reader.count() == 3
            assert again.headers["Idempotency-Replayed"] == "true"
            assert again.headers["Mesh-Receipt"] == first.headers["Mesh-Receipt"]
            if held:
                assert again.body == first.body
            else:
                ids = [mesh["receipt_id"] for mesh in again.json["mesh"]["choices"]]
                assert ids == [mesh["receipt_id"] for mesh in told(first)]

    asyncio.run(main(held=True, folder=tmp_path / "held"))
    monkeypatch.setattr(Answering, "_hold", lambda *args: None)
    asyncio.run(main(held=False, folder=tmp_path / "gone"))


def test_drain_seals_what_runs_and_begins_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"x"] * 5, hold_at=1, slots=1)
        async with house(tmp_path, engine, drain_s=0) as gate:
            asking = asyncio.ensure_future(gate.post(script(n=3)))
            await engine.held.wait()
            await gate.gateway.stop()
            reply = await asking
            assert reply.code == (503, "engine-unavailable")
            assert (engine.serves, gate.steward.reader.count()) == (1, 1)

    asyncio.run(main())
