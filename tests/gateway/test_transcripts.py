"""Models on many kinds of prompt: what is streamed is what is answered, to the byte, with its log-probabilities."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.gateway.serving import House, content, house
from tests.gateway.test_logprobs import whole
from tests.support.models import smollm2_path
from tests.support.tiny_gguf import write_tiny_gguf

PROMPTS = [
    "Repeat: 🙂🙃🚀", "Continue: 👨‍👩‍👧‍👦 👩🏽‍🚀", "🇯🇵🇩🇪🇧🇷 are flags of", "Emoji only: 🌧🌈", "😀" * 8,
    "東京は", "你好，请介绍一下你自己", "한국어로 인사해 줘", "日本語で書いて: 雨", "翻译成中文: good morning",
    "Привет, как дела?", "مرحبا", "नमस्ते दुनिया", "Žluťoučký kůň", "ﬁ ﬂ ½ ㎏",
    "def fib(n):", "```python\nfor i in range(3):", '{"a": [1, 2, {"b": null}]}', "SELECT * FROM t",
    "<div class=\"x\">",
    "int main(void) {\n\treturn 0;\n}", "a\tb\r\nc\x0b", "\\n is not a line break", "Name three colours.", "x" * 60,
    "Count: 1, 2, 3,", "e\u0301 and \u00e9", "\u200b\u2060zero width", "$x^2$ and \\frac{1}{2}", "What is rain? 🌧",
]  # fmt: skip
STOPS = [["e"], ["\n"], ["th", "the"], ["。", "は"], [". "], ["o", " 2"]]


def body(index: int, **fields: Any) -> dict[str, Any]:
    """A call of a model named `model`. Every third is sampled, every second has stop strings."""
    sampling = {"temperature": 0.9, "seed": index} if index % 3 == 2 else {"temperature": 0}
    stops = {"stop": STOPS[index // 2 % len(STOPS)]} if index % 2 else {}
    messages = [{"role": "user", "content": PROMPTS[index]}]
    return {"model": "model", "messages": messages, "max_tokens": 8, **sampling, **stops, **fields}


async def compare(gate: House, index: int) -> None:
    call = body(index, logprobs=True, top_logprobs=1)
    plain, streamed = await asyncio.gather(gate.post(call), gate.post({**call, "stream": True}))
    assert plain.status == streamed.status == 200
    said = content(plain)
    assert said.encode() == content(streamed).encode()
    finish = [event["choices"][0]["finish_reason"] for event in streamed.events if event["choices"]]
    assert finish[-1] == plain.json["choices"][0]["finish_reason"]
    assert not any(stop in said for stop in call.get("stop", ()))
    entries = whole(plain, "content")
    assert entries == whole(streamed, "content")
    # what the ids spell is the text, but for what a stop string or the cap cut off it
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spelled.decode(errors="replace").startswith(said.rstrip("\ufffd"))
    if index % 3 != 2:
        assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries)
    outcomes = [gate.receipt(reply.headers["Mesh-Serve"]).value.outcome for reply in (plain, streamed)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].tokens_out == plain.json["usage"]["completion_tokens"]


def test_streams_of_any_bytes_equal_plain_answers(tmp_path: Path) -> None:
    """The tiny model's ids are single bytes as good as drawn, so that most of its characters are split or no
    characters."""

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "tiny.gguf"), "model"))
        async with house(tmp_path / "house", engine) as gate:
            assert len(PROMPTS) == 30
            for index in range(len(PROMPTS)):
                await compare(gate, index)

    asyncio.run(main())


@pytest.mark.deep
@pytest.mark.real_model
def test_streams_of_a_real_model_equal_plain_answers(tmp_path: Path) -> None:
    def sync_helper(url: str) -> tuple[str, Any]:
        with openai.OpenAI(base_url=url + "/v1", api_key="none") as client:
            call: Any = body(25, max_tokens=60)
            with client.chat.completions.stream(**call) as helper:
                said = "".join(event.delta for event in helper if event.type == "content.delta")
                return said, helper.get_final_completion()

    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(smollm2_path(), "model"))
        async with house(tmp_path, engine) as gate:
            for index in range(len(PROMPTS)):
                await compare(gate, index)
            said, final = await asyncio.to_thread(sync_helper, gate.url)
            assert said == final.choices[0].message.content
            choices = await gate.post(body(2, n=2, stream=True))
            again = [await gate.post(body(2, seed=2 + index)) for index in range(2)]
            for index, reply in enumerate(again):
                parts = [e["choices"][0] for e in choices.events if e["choices"][0]["index"] == index]
                assert "".join(part["delta"].get("content", "") for part in parts) == content(reply)
            assert json.loads(again[0].body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    asyncio.run(main())
