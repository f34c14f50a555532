"""The clients that people have, unchanged, on a real model: what they stream is what they are answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from tests.clients.conftest import Asked
from tests.gateway.serving import house
from tests.gateway.test_toolcalls import HERMES
from tests.support.models import smollm2_path

pytestmark = pytest.mark.real_model

HELLO = [{"role": "user", "content": "Say hello in French, with an emoji."}]


def turn(city: str) -> list[dict[str, Any]]:
    call = {"name": "Weather", "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": city, "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": city, "content": "fine"},
    ]


# It calls in the end; what it may call with does not know the city it is asked about.
CONVERSATION = [*turn("Paris"), *turn("Rome"), {"role": "user", "content": "What is the weather in Berlin?"}]


async def ask(tmp_path: Path, client: Asked, script: str) -> Any:
    engine = await GgufEngine.start(GgufConfig(smollm2_path(), "smollm2", chat_template=HERMES))
    async with house(tmp_path / "state", engine) as gate:
        return await client(script, gate.url + "/v1", model="smollm2", hello=HELLO, conversation=CONVERSATION)


@pytest.mark.parametrize("script", ["openai_sdk.py", "langchain_openai_chat.py"])
def test_a_client_reads_text_calls_and_structured_answers_both_ways(tmp_path: Path, client: Asked, script: str) -> None:
    told = asyncio.run(ask(tmp_path, client, script))
    assert told["sync"] == told["async"]
    found = told["sync"]
    assert found["said"] == found["plain"] != ""
    for name in ("chosen", "streamed", "forced"):
        assert len(found[name]) >= 1
        assert set(found[name]) <= {"Paris", "Rome"}
    assert found["chosen"] == found["streamed"]
    for colour in found.get("colours", [found.get("colour")]):
        assert colour["name"] in ("red", "green", "blue")
        assert type(colour["warm"]) is bool
    if "once" in found:
        assert len(found["once"]) == 1
        usage = found["usage"]
        assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
