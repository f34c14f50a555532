"""Log-probabilities: with the text that they belong to, real bytes, and the same streamed and plain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import Scores
from mesh.gateway.logprobs import ScoreLine, chat_logprobs, text_logprobs
from tests.gateway.serving import TEXT, Reply, Scoring, house, script


def whole(reply: Reply, field: str) -> list[Any]:
    """The entries of a plain answer, or of all chunks."""
    if b"data: " not in reply.body:
        entries: list[Any] = reply.json["choices"][0]["logprobs"][field]
        return entries
    told = [choice["logprobs"] for event in reply.events for choice in event["choices"]]
    return [entry for one in told if one for entry in one[field]]


# GW-07
@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        (["486920f09f", "9982"], ["bytes:\\x48\\x69\\x20\\xf0\\x9f", "bytes:\\x99\\x82"]),
        (["e6", "9d", "b1"], ["bytes:\\xe6", "bytes:\\x9d", "bytes:\\xb1"]),
        (["e69d", "41"], ["bytes:\\xe6\\x9d", "A"]),
        (["6f6b20f09f"], ["bytes:\\x6f\\x6b\\x20\\xf0\\x9f"]),
    ],
)
def test_bytes_are_the_real_ones(tmp_path: Path, pieces: list[str], tokens: list[str]) -> None:
    async def main() -> None:
        async with house(tmp_path, Scoring(bytes.fromhex(piece) for piece in pieces)) as gate:
            call: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": len(pieces)}
            plain = await gate.post(script(**call))
            streamed = await gate.post(script(stream=True, **call))
            entries = whole(plain, "content")
            assert entries == whole(streamed, "content")
            assert [entry["token"] for entry in entries] == tokens
            assert [bytes(entry["bytes"]).hex() for entry in entries] == pieces
            assert all("\ufffd" not in entry["token"] for entry in entries)
            assert plain.json["mesh"]["logprobs"] == streamed.events[-1]["mesh"]["logprobs"] == "raw"

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_entries_come_with_their_text_and_end_with_it(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scoring([b"one", b" two\n", b"Us", b"er: three"])
        async with house(tmp_path, engine) as gate:
            reply = await gate.post(script(stream=streamed, logprobs=True, stop=["\nUser:"]))
            entries = whole(reply, "content")
            # the id that holds the last of the text has an entry, though the stop string took its line break
            assert [entry["token"] for entry in entries] == ["one", " two\n"]
            assert [entry["top_logprobs"] for entry in entries] == [[], []]

    asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_text_route_has_offsets_and_maps(tmp_path: Path, streamed: bool) -> None:
    async def main() -> None:
        engine = Scoring(["é".encode(), b"b", b"c"])
        async with house(tmp_path, engine) as gate:
            body = {"model": "scripted", "prompt": "hi", "logprobs": 3, "stream": streamed}
            reply = await gate.post(body, path=TEXT)
            assert whole(reply, "tokens") == ["é", "b", "c"]
            assert whole(reply, "text_offset") == [0, 1, 2]
            assert whole(reply, "token_logprobs") == [-0.25] * 3
            # ids without text are named, and JSON has no infinity
            assert whole(reply, "top_logprobs")[1] == {"b": -0.25, "c": -1.5, "token_id:3": -9999.0}

    asyncio.run(main())


def test_openai_sdk_reads_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scoring([b"a", b"b"])) as gate, gate.sdk() as client:
            call: Any = script(logprobs=True, top_logprobs=1)
            answer = await client.chat.completions.create(**call)
            assert [entry.token for entry in answer.choices[0].logprobs.content] == ["a", "b"]
            async with client.chat.completions.stream(**call) as helper:
                final = await helper.get_final_completion()
            logprobs = final.choices[0].logprobs
            assert logprobs is not None
            assert [entry.top_logprobs[0].token for entry in logprobs.content or ()] == ["a", "b"]

    asyncio.run(main())


def test_more_than_the_engine_gives_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scoring([b"a"])) as gate:
            reply = await gate.post(script(logprobs=True, top_logprobs=4))
            assert (reply.code, reply.error["param"]) == ((400, "unsupported_parameter"), "logprobs")
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


def test_empty_output_has_empty_lists() -> None:
    assert chat_logprobs([], bytes) == {"content": [], "refusal": None}
    assert text_logprobs([], bytes)["tokens"] == []


def test_line_holds_what_is_not_out() -> None:
    line = ScoreLine()
    scores = Scores(-1.0, ())
    for token, piece in enumerate([b"ab", b"", b"cd"]):
        line.push(token, piece, scores)
    assert [entry.token for entry in line.release(3, ended=False)] == [0]
    assert [entry.token for entry in line.release(3, ended=True)] == [2]
