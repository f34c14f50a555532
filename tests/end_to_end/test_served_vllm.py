"""A vLLM server behind the mesh, from a client's request to a replayed receipt; the server is the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmTextEngine
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema.request import unpack_ids
from tests.gateway.serving import CHAT, TEXT, House, content, house, raw_request
from tests.support.fake_completion import DONE
from tests.support.fake_vllm import CUT, FakeVllm, running, status
from tests.support.vllm_engines import engine_on, served_by
from tests.support.vllm_folder import encode, text_of

ASKED = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
YEAR_NS = 365 * 24 * 3600 * 10**9
LONG = "once upon a time there was a small server " * 2

Test = Callable[[House, FakeVllm, VllmTextEngine], Awaitable[None]]


def chat(said: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": said}], **ASKED, **fields}


def text(prompt: str | list[int] = "hello", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, **ASKED, **fields}


@asynccontextmanager
async def behind(folder: Path, slots: int = 2, **told: Any) -> AsyncIterator[tuple[House, FakeVllm, VllmTextEngine]]:
    async with (
        served_by(folder, {"slots": slots}, **told) as (fake, engine),
        house(folder, engine, keep_ns=YEAR_NS) as gate,  # type: ignore[arg-type]
    ):
        yield gate, fake, engine


def on(folder: Path, test: Test, **told: Any) -> None:
    async def main() -> None:
        async with behind(folder, **told) as (gate, fake, engine):
            await test(gate, fake, engine)

    asyncio.run(main())


async def replayed(gate: House, engine: VllmTextEngine) -> list[Verdict]:
    """Every receipt in the ledger, with what is kept of it."""
    reader, steward = gate.steward.reader, gate.steward
    entries = list(reader.receipts())
    return [await replay(e.envelope, steward.disclosure(e), engine, {steward.public}) for e in entries]


def test_every_kind_of_serve_is_verified_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        sampling: list[dict[str, Any]] = [
            {"temperature": 0}, {"temperature": 0.8, "seed": 7}, {"temperature": 0, "stop": ["e"]},
            {"temperature": 1, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "logit_bias": {"40": 1}, "seed": 3},
        ]  # fmt: skip
        asked = [
            (path, make(f"question {n}", stream=streamed, **extra))
            for path, make in ((CHAT, chat), (TEXT, text))
            for streamed in (False, True)
            for n, extra in enumerate(sampling)
        ]
        replies = await asyncio.gather(*(gate.post(body, path=path) for path, body in asked))
        assert [reply.status for reply in replies] == [200] * len(asked)
        # streamed or not, the same request has the same answer
        said = [content(reply) for reply in replies]
        half = len(sampling)
        assert said[:half] == said[half : 2 * half]
        assert said[2 * half : 3 * half] == said[3 * half :]
        await fake.restart()
        await engine.ready()
        verdicts = await replayed(gate, engine)
        assert len(verdicts) == len(asked)
        assert {verdict.kind for verdict in verdicts} == {"verified"}
        assert {verdict.prompt for verdict in verdicts} == {"checked"}

    on(tmp_path, test, slots=4)


def test_the_receipts_of_one_server_are_not_replayable_on_another(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        await gate.post(chat())
        async with running(numbers="bfloat16") as other, engine_on(other, tmp_path / "model") as second:
            assert isinstance(second, VllmTextEngine)
            (verdict,) = await replayed(gate, second)
            assert (verdict.kind, verdict.reason) == ("not-replayable", "other-settings")
            assert "probe" in (verdict.detail or "")

    on(tmp_path, test)


def test_usage_is_always_asked_for_and_shown_to_those_who_asked(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        for path, body in ((CHAT, chat(stream=True)), (TEXT, text(stream=True))):
            hidden = await gate.post(body, path=path)
            assert fake.bodies[-1]["stream_options"] == {"include_usage": True}
            assert not any("usage" in event for event in hidden.events)
            shown = await gate.post(body | {"stream_options": {"include_usage": True}}, path=path)
            (usage,) = [event["usage"] for event in shown.events if event.get("usage")]
            assert usage["completion_tokens"] == 8
            assert content(hidden) == content(shown)
            assert hidden.lines[-1] == "data: [DONE]"

    on(tmp_path, test)


def test_an_answer_is_the_servers_ids_and_nothing_of_the_servers_own(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        reply = await gate.post(chat("how far?"))
        assert fake.bodies[-1]["prompt"] == encode("user: how far?\nassistant:")
        ids = unpack_ids(gate.steward.disclosure(next(gate.steward.reader.receipts())).output or b"")
        assert content(reply) == text_of(ids)
        assert len(ids) == 8
        assert b"fingerprint" not in reply.body.replace(b'"system_fingerprint":null', b"")
        receipt = gate.receipt(reply.headers["Mesh-Receipt"]).value
        assert receipt.engine.backend_id == "vllm/0.32.0/none/none/told:cpu/none"
        assert (receipt.engine.deterministic, receipt.outcome.counted_by) == (True, "both")

    on(tmp_path, test)


def test_a_client_that_leaves_stops_the_server_and_what_was_made_is_verified(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.hold_at = 5
        _, writer = await asyncio.open_connection("127.0.0.1", gate.port)
        writer.write(raw_request(chat(stream=True, max_tokens=9)))
        await fake.held.wait()
        writer.transport.abort()
        told = (await gate.last_receipt(1)).value.outcome
        assert told.finish == "cancelled"
        assert told.tokens_out <= 5
        await fake.until(lambda: fake.aborted == 1 and fake.in_flight == 0)
        fake.hold_at = None
        (verdict,) = await replayed(gate, engine)
        assert verdict.kind == "verified"
        assert (await gate.post(chat())).status == 200

    on(tmp_path, test)


@pytest.mark.parametrize(
    "last",
    [({"error": {"message": "x", "type": "InternalServerError"}}, DONE), (CUT,), (b"data: {\n\n",), (DONE,)],
    ids=["error and [DONE]", "cut", "not JSON", "[DONE] alone"],
)
def test_a_server_that_fails_in_mid_stream_ends_it_in_an_error_with_a_receipt(tmp_path: Path, last: Any) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        whole = content(await gate.post(chat()))
        fake.edit = lambda n, event: (event,) if n < 3 else last if n == 3 else ()
        reply = await gate.post(chat(stream=True))
        assert reply.status in (200, 502)  # 502 where nothing had been sent by then
        error = reply.events[-1]["error"] if reply.status == 200 else reply.error
        assert (error["type"], error["code"]) == ("server_error", "engine-failed")
        assert b"[DONE]" not in reply.body
        outcome = gate.receipt(error["mesh"]["receipt_id"]).value.outcome
        assert (outcome.finish, outcome.reason, outcome.counted_by) == ("engine-error", "engine-failed", "gateway")
        if reply.status == 200:
            said = "".join(e["choices"][0]["delta"].get("content", "") for e in reply.events if e.get("choices"))
            assert whole.startswith(said)
        plain = await gate.post(chat(max_tokens=65))  # one that is short is asked for in one piece, not streamed
        assert plain.code == (502, "engine-failed")
        assert gate.receipt(plain.headers["Mesh-Receipt"]).value.outcome.finish == "engine-error"
        fake.edit = None
        assert content(await gate.post(chat())) == whole
        verdicts = await replayed(gate, engine)
        assert [(verdict.kind, verdict.reason) for verdict in verdicts] == [
            ("verified", None), ("not-replayable", "incomplete-serve"), ("not-replayable", "incomplete-serve"),
            ("verified", None),
        ]  # fmt: skip

    on(tmp_path, test)


def test_an_error_of_the_server_tells_the_client_nothing_that_was_said(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        error = {"message": "bad prompt: hello my secret", "type": "BadRequestError", "code": 400}
        fake.instead["/v1/completions"] = status(400, {"error": error})
        reply = await gate.post(chat("hello my secret"))
        assert reply.code == (502, "engine-failed")
        assert b"secret" not in reply.body
        fake.instead["/v1/completions"] = status(503)
        reply = await gate.post(chat())
        assert reply.code == (503, "engine-unavailable")
        assert "Retry-After" in reply.headers

    on(tmp_path, test)


def test_a_server_that_is_another_one_now_serves_nobody(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert (await gate.post(chat())).status == 200
        await fake.restart(numbers="bfloat16")
        for streamed in (False, True):
            reply = await gate.post(chat(stream=streamed))
            assert reply.code == (503, "engine-unavailable")
            assert "gives other numbers than before" in reply.error["message"]
        assert gate.steward.reader.count() == 1
        assert (await gate.get("/readyz")).status == 503
        await fake.restart(numbers="float32")
        assert (await gate.get("/readyz")).status == 200
        assert (await gate.post(chat())).status == 200

    on(tmp_path, test)


def test_swapped_weights_serve_nobody(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        (tmp_path / "model" / "model.safetensors").write_bytes(b"others")
        reply = await gate.post(chat())
        assert reply.code == (503, "weights-changed")
        assert gate.steward.reader.count() == 0

    on(tmp_path, test)


@pytest.mark.parametrize("fault", ["crowd", "warm"])
def test_numbers_that_move_are_served_without_a_claim(tmp_path: Path, fault: str) -> None:
    """VL-01 a, VL-02: such a serve is neither verified nor called tampered with."""

    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        replies = await asyncio.gather(*(gate.post(chat(f"question {n}")) for n in range(4)))
        for reply in replies:
            assert not gate.receipt(reply.headers["Mesh-Receipt"]).value.engine.deterministic
        verdicts = await replayed(gate, engine)
        assert {(verdict.kind, verdict.reason) for verdict in verdicts} == {("not-replayable", "not-claimed")}

    on(tmp_path, test, slots=4, **{fault: True})


def test_cached_prompt_tokens_are_sealed(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        hits = []
        for _ in range(2):
            reply = await gate.post(text(LONG), path=TEXT)
            hits.append(gate.receipt(reply.headers["Mesh-Receipt"]).value.outcome.cache_hit_tokens)
        assert hits == [0, 80]
        # what the cache held changes nothing of what is verified
        assert [verdict.kind for verdict in await replayed(gate, engine)] == ["verified", "verified"]

    on(tmp_path, test, counts_cached=True)


def test_what_vllm_would_do_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    async def test(gate: House, fake: FakeVllm, engine: VllmTextEngine) -> None:
        asked = len(fake.bodies)
        for fields, name in (({"temperature": 0.001}, "temperature"), ({"temperature": 1, "top_p": 0}, "top_p")):
            reply = await gate.post(chat(**fields))
            assert reply.status == 400
            assert name in reply.error["message"]
        # VL-08: no grammar is followed, so no answer is called valid that is not
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
        for name, value in (("response_format", {"type": "json_object"}), ("response_format", schema), ("logprobs", 1)):
            assert (await gate.post(chat(**{name: value}))).status == 400
        assert (await gate.post(chat(max_tokens=5000))).code == (400, "context_length_exceeded")
        assert (await gate.post(text([1, 999]), path=TEXT)).status == 400
        assert len(fake.bodies) == asked
        assert gate.steward.reader.count() == 0

    on(tmp_path, test)
