"""Chat and text completions through real sockets: plain and streamed say the same, and each has a receipt."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from mesh.engine.reference import ReferenceEngine, stream
from mesh.replay.replayer import replay
from mesh.schema.commitment import output_commitment
from mesh.schema.disclosure import Disclosure
from mesh.schema.ids import steward_text
from mesh.schema.request import payload_digest, prompt_hash_of_ids, prompt_hash_of_text
from tests.gateway.serving import NONCE, TEXT, Scripted, ask, content, house, script


def words(prompt_hash: bytes, count: int) -> str:
    """What the reference engine says to a prompt."""
    values = stream(prompt_hash, count)
    return "".join(f" w{next(values) % 32_000:05d}" for _ in range(count))


RENDERED = "user: hello\nassistant:"
SAID = words(prompt_hash_of_text(RENDERED, bytes.fromhex(NONCE)), 8)
FIXED = {"mesh": {"nonce": NONCE}}


def test_plain_chat_has_answer_usage_and_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask(**FIXED))
            assert (reply.status, content(reply)) == (200, SAID)
            answer = reply.json
            assert (answer["object"], answer["model"]) == ("chat.completion", "reference")
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["prompt_tokens"] == len(RENDERED)
            assert (answer["usage"]["completion_tokens"], answer["usage"]["total_tokens"]) == (8, len(RENDERED) + 8)
            mesh = answer["mesh"]
            assert (mesh["serve_id"], mesh["receipt_id"]) == (
                reply.headers["Mesh-Serve"],
                reply.headers["Mesh-Receipt"],
            )
            assert mesh["steward"] == steward_text(gate.steward.public)
            assert mesh["energy"]["basis"] == "absent"
            assert "disclosure" not in mesh
            receipt = gate.receipt(mesh["receipt_id"]).value
            assert receipt.serve_id.hex() == mesh["serve_id"].replace("-", "")
            assert (receipt.max_tokens, receipt.outcome.finish, receipt.outcome.tokens_delivered) == (8, "length", 8)
            assert reply.headers["Cache-Control"] == "no-store"
            assert reply.headers["Server"] == "mesh"

    asyncio.run(main())


def test_stream_ends_with_the_receipt_and_says_what_the_plain_answer_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask(stream=True, **FIXED))
            assert (reply.status, content(reply)) == (200, SAID)
            assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            first, *_, finish = reply.events
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["delta"]) == ("length", {})
            assert all(event["object"] == "chat.completion.chunk" for event in reply.events)
            assert len({event["id"] for event in reply.events}) == 1
            assert "usage" not in finish
            assert finish["mesh"]["serve_id"] == reply.headers["Mesh-Serve"]
            receipt_id = finish["mesh"]["receipt_id"]
            receipt, energy, done = reply.lines[-3:]
            assert (receipt, done) == (f": mesh-receipt {receipt_id}", "data: [DONE]")
            assert json.loads(energy.removeprefix(": energy "))["receipt_id"] == receipt_id
            assert gate.receipt(receipt_id).value.outcome.tokens_delivered == 8

    asyncio.run(main())


# GW-01
@pytest.mark.parametrize(
    ("options", "told"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_usage_chunk_comes_if_asked_and_is_in_the_receipt_anyhow(
    tmp_path: Path, options: dict[str, bool] | None, told: bool
) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask(stream=True, stream_options=options))
            (*chunks, last) = reply.events
            assert not any("usage" in chunk for chunk in chunks)
            assert ("usage" in last) == told
            outcome = gate.receipt(reply.headers["Mesh-Serve"]).value.outcome
            assert (outcome.tokens_out, outcome.counted_by) == (8, "both")
            if told:
                assert last["choices"] == []
                usage = last["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (outcome.tokens_in, 8)

    asyncio.run(main())


@pytest.mark.parametrize("prompt", ["hello", [104, 105]])
def test_text_completion_takes_text_or_ids(tmp_path: Path, prompt: Any) -> None:
    nonce = bytes.fromhex(NONCE)
    hashed = prompt_hash_of_text(prompt, nonce) if isinstance(prompt, str) else prompt_hash_of_ids(prompt, nonce)

    async def main() -> None:
        async with house(tmp_path) as gate:
            body = {"model": "reference", "prompt": prompt, "max_tokens": 5, **FIXED}
            plain = await gate.post(body, path=TEXT)
            streamed = await gate.post({**body, "stream": True}, path=TEXT)
            assert content(plain) == content(streamed) == words(hashed, 5)
            assert plain.json["object"] == streamed.events[0]["object"] == "text_completion"
            assert plain.json["usage"]["prompt_tokens"] == len(prompt)
            assert gate.receipt(plain.headers["Mesh-Receipt"]).value.prompt_hash == hashed

    asyncio.run(main())


def test_disclosure_on_request_opens_the_receipt_and_replays(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            for streamed in (False, True):
                reply = await gate.post(ask(stream=streamed, mesh={"disclose": True}))
                mesh = reply.events[-1]["mesh"] if streamed else reply.json["mesh"]
                packed = base64.urlsafe_b64decode(mesh["disclosure"] + "==")
                disclosure = Disclosure.from_bytes(packed)
                sealed = gate.receipt(mesh["receipt_id"])
                assert (disclosure.prompt, disclosure.request.id) == (RENDERED, sealed.value.request_id)
                assert sealed.value.output_commitment == output_commitment(
                    disclosure.opening,
                    disclosure.request.id,
                    payload_digest(disclosure.payload_ids),
                    disclosure.output_ids or (),
                )
                verdict = await replay(sealed.envelope, disclosure, ReferenceEngine(), {gate.steward.public})
                assert (verdict.kind, verdict.output) == ("verified", "matches")

    asyncio.run(main())


def test_openai_sdk_reads_plain_and_streamed(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate, gate.sdk() as client:
            call: Any = {"model": "reference", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
            plain = await client.chat.completions.create(**call, extra_body=FIXED)
            assert plain.choices[0].message.content == SAID
            assert plain.mesh["receipt_id"].startswith("b3:")
            said, reasons = "", []
            async for chunk in await client.chat.completions.create(**call, stream=True, extra_body=FIXED):
                said += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
            assert (said, reasons[-1], set(reasons[:-1])) == (SAID, "length", {None})
            text = await client.completions.create(model="reference", prompt="hello", max_tokens=3)
            assert len(text.choices[0].text) == 3 * 7
            models = [model.id async for model in client.models.list()]
            assert models == ["reference"]
            assert (await client.models.retrieve("reference")).id == "reference"

    asyncio.run(main())


def test_openai_sdk_streaming_helper_runs_to_its_final_completion(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"Hi \xf0\x9f", b"\x99\x82", b"!"])) as gate, gate.sdk() as client:
            options: Any = {"include_usage": True}
            async with client.chat.completions.stream(**script(), stream_options=options) as helper:
                deltas = [event.delta async for event in helper if event.type == "content.delta"]
                final = await helper.get_final_completion()
            assert final.choices[0].message.content == "".join(deltas) == "Hi \N{SLIGHTLY SMILING FACE}!"
            assert final.usage is not None
            assert final.usage.completion_tokens == 4

    asyncio.run(main())


def test_openai_sdk_reads_it_in_sync_too(tmp_path: Path) -> None:
    def talk(url: str) -> str:
        with openai.OpenAI(base_url=url + "/v1", api_key="none") as client:
            chunks = client.chat.completions.create(**ask(stream=True), extra_body=FIXED)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    async def main() -> None:
        async with house(tmp_path) as gate:
            assert await asyncio.to_thread(talk, gate.url) == SAID

    asyncio.run(main())


# GW-07
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("pieces", "text", "delivered"),
    [
        (["486920f09f", "9982"], "Hi \N{SLIGHTLY SMILING FACE}", 2),
        (["e6", "9d", "b1"], "東", 3),
        (["f09f91a8e2", "808df09f91", "a9"], "\U0001f468\u200d\U0001f469", 3),
        (["e69d", "41"], "\ufffdA", 2),
        (["6f6b20f09f"], "ok \ufffd", 0),
    ],
)
def test_characters_split_over_tokens_arrive_whole(
    tmp_path: Path, pieces: list[str], text: str, delivered: int, streamed: bool
) -> None:
    async def main() -> None:
        # the cap cuts right after the pieces, so that the last row ends inside its character
        engine = Scripted(bytes.fromhex(piece) for piece in pieces)
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(script(stream=streamed, max_tokens=len(pieces)))
            assert content(reply) == text
            mesh = reply.events[-1]["mesh"] if streamed else reply.json["mesh"]
            outcome = gate.receipt(mesh["receipt_id"]).value.outcome
            assert (outcome.tokens_out, outcome.tokens_delivered) == (len(pieces), delivered)
            assert mesh.get("incomplete_character", False) == (delivered < len(pieces))

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_stop_string_across_tokens_is_not_told_but_committed(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scripted([b"one ", b"two\n", b"Us", b"er: three", b"four"])
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(script(stream=streamed, stop=["\nUser:"]))
            assert content(reply) == "one two"
            mesh = reply.events[-1]["mesh"] if streamed else reply.json["mesh"]
            outcome = gate.receipt(mesh["receipt_id"]).value.outcome
            assert (outcome.finish, outcome.tokens_out, outcome.tokens_delivered) == ("stop", 4, 1)

    asyncio.run(main())


def test_end_of_the_model_is_a_stop_and_its_token_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"a", b"b"])) as gate:
            reply = await gate.post(script())
            assert (content(reply), reply.json["choices"][0]["finish_reason"]) == ("ab", "stop")
            assert reply.json["usage"]["completion_tokens"] == 3
            outcome = gate.receipt(reply.headers["Mesh-Receipt"]).value.outcome
            assert (outcome.tokens_out, outcome.tokens_delivered) == (3, 2)

    asyncio.run(main())


def test_empty_answer_is_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([])) as gate:
            plain, streamed = await gate.post(script()), await gate.post(script(stream=True))
            assert (plain.status, content(plain), streamed.status, content(streamed)) == (200, "", 200, "")
            assert streamed.lines[-1] == "data: [DONE]"

    asyncio.run(main())


def test_silent_stream_is_kept_alive_after_the_intent(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Scripted([b"slow"], hold_at=0)
        async with (
            house(tmp_path, engine, keep_alive_s=1) as gate,
            gate.http.post("/v1/chat/completions", json=script(stream=True)) as response,
        ):
            assert "Mesh-Serve" in response.headers
            lines = [await response.content.readuntil(b"\n\n") for _ in range(2)]
            assert lines[1] == b": keep-alive\n\n"
            engine.go.set()
            assert b"slow" in await response.read()

    asyncio.run(main())


# GW-08
@pytest.mark.parametrize(
    ("caps", "effective"),
    [
        ({"max_tokens": 8}, 8),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 8, "max_completion_tokens": 8}, 8),
        ({}, 12),
        ({"max_tokens": None}, 12),
    ],
)
def test_cap_applies_and_is_in_the_receipt(tmp_path: Path, caps: dict[str, Any], effective: int) -> None:
    async def main() -> None:
        async with house(tmp_path, default_max_tokens=12) as gate:
            body = {"model": "reference", "messages": [{"role": "user", "content": "hello"}], **caps}
            reply = await gate.post(body)
            assert reply.json["usage"]["completion_tokens"] == effective
            assert reply.json["choices"][0]["finish_reason"] == "length"
            assert gate.receipt(reply.headers["Mesh-Receipt"]).value.max_tokens == effective

    asyncio.run(main())


def test_default_cap_is_what_the_context_has_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, ReferenceEngine(context_tokens=len(RENDERED) + 3)) as gate:
            reply = await gate.post(ask(max_tokens=None))
            assert reply.json["usage"]["completion_tokens"] == 3
            assert gate.receipt(reply.headers["Mesh-Receipt"]).value.max_tokens == 3

    asyncio.run(main())


@pytest.mark.parametrize("cap", [0, -1, 100_000_000, "8"])
@pytest.mark.parametrize("streamed", [False, True])
def test_cap_that_cannot_be_is_refused_without_a_receipt(tmp_path: Path, cap: Any, streamed: bool) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(ask(max_tokens=cap, stream=streamed))
            assert reply.status == 400
            if cap != 100_000_000:
                assert reply.error["param"] == "max_tokens"
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


# GW-09
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("prompt_tokens", "cap"), [(3000, None), (2040, 64), (2048, None)])
def test_prompt_over_the_context_is_refused_once_with_both_numbers(
    tmp_path: Path, prompt_tokens: int, cap: int | None, streamed: bool
) -> None:
    class Counting(Scripted):
        encodings = 0

        async def encode(self, text: str, *, special: bool) -> list[int]:
            self.encodings += 1
            return await super().encode(text, special=special)

    async def main() -> None:
        engine = Counting([b"x"], context_tokens=2048)
        padding = "." * (prompt_tokens - len("user: \nassistant:"))
        async with house(tmp_path, engine) as gate, gate.sdk() as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(
                    model="scripted", messages=[{"role": "user", "content": padding}], max_tokens=cap, stream=streamed
                )
            assert caught.value.code == "context_length_exceeded"
            assert caught.value.type == "invalid_request_error"
            assert str(prompt_tokens) in caught.value.message
            assert "2048" in caught.value.message
            assert (engine.encodings, engine.serves, gate.steward.reader.count()) == (1, 0, 0)

    asyncio.run(main())


def test_id_that_no_vocabulary_has_names_the_prompt(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            body = {"model": "reference", "prompt": [1, 32_000], "max_tokens": 1}
            reply = await gate.post(body, path="/v1/completions")
            assert reply.code == (400, "invalid_value")
            assert reply.error["param"] == "prompt"
            assert "prompt: token 32000: the reference engine has ids 0..31999" in reply.error["message"]
            assert gate.steward.reader.count() == 0

    asyncio.run(main())
