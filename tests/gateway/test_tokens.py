"""`/tokenize` and `/detokenize` as llama-server's and vLLM's clients send and read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.serving import Scripted, house

MESSAGES = [{"role": "user", "content": "hi"}]


def test_llama_server_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            plain = await gate.post({"content": "hi"}, path="/tokenize")
            assert plain.json == {"tokens": [104, 105]}
            pieces = await gate.post({"content": "h", "with_pieces": True, "model": "reference"}, path="/tokenize")
            assert pieces.json == {"tokens": [{"id": 104, "piece": " w00104"}]}
            back = await gate.post({"tokens": [1, 2]}, path="/detokenize")
            assert back.json["content"] == " w00001 w00002"
            assert gate.steward.reader.count() == 0

    asyncio.run(main())


def test_vllm_shape(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            body: dict[str, Any] = {"model": "reference", "prompt": "hi", "return_token_strs": True}
            told = (await gate.post(body, path="/tokenize")).json
            assert told == {
                "count": 2,
                "max_model_len": 1_000_000,
                "tokens": [104, 105],
                "token_strs": [" w00104", " w00105"],
            }
            chat = (await gate.post({"model": "reference", "messages": MESSAGES}, path="/tokenize")).json
            assert chat["count"] == len("user: hi\nassistant:")
            back = await gate.post({"model": "reference", "tokens": [1]}, path="/detokenize")
            assert back.json["prompt"] == " w00001"

    asyncio.run(main())


def test_piece_that_is_no_text_is_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with house(tmp_path, Scripted([b"\xe6\x9d"] * 200)) as gate:
            told = (await gate.post({"content": "h", "with_pieces": True}, path="/tokenize")).json
            assert told["tokens"] == [{"id": 104, "piece": [0xE6, 0x9D]}]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
        ("/tokenize", {"content": 1}, "content"),
        ("/tokenize", {"content": "a", "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "parse_special": True}, "parse_special"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"content": "a", "model": "another"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    tmp_path: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async def main() -> None:
        async with house(tmp_path) as gate:
            reply = await gate.post(body, path=path)
            assert (reply.status, reply.error["param"]) == (404 if param == "model" else 400, param)

    asyncio.run(main())


def test_an_alias_is_tokenized_by_the_first_of_its_backends(tmp_path: Path) -> None:
    async def main() -> None:
        engines = [Scripted([name.encode()] * 200, recipe_id=name) for name in "ab"]
        async with house(tmp_path, engines[0], others=engines[1:], shared="both") as gate:
            for model, text in (("both", "a"), ("a", "a"), ("b", "b")):
                back = await gate.post({"tokens": [1], "model": model}, path="/detokenize")
                assert back.json["content"] == text
            assert (await gate.post({"content": "h"}, path="/tokenize")).code == (400, "invalid_value")

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_bodies_share_the_bounds_of_all_requests(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        async with house(tmp_path, max_body_bytes=2000) as gate:
            assert (await gate.post({"content": "x" * 3000}, path=path)).code == (413, "body_too_large")

    asyncio.run(main())
