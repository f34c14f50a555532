"""Chats over the gateway's own wire, streams read to their last byte."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from mesh.schema.disclosure import Disclosure

CHAT = "/v1/chat/completions"


def chat(model: str, said: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": said}], **fields}


async def disclosed(port: int, model: str, said: str, **fields: Any) -> Disclosure:
    """The disclosure that comes with an answer, plain or streamed."""
    body = chat(model, said, mesh={"disclose": True}, **fields)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, http.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        if fields.get("stream"):
            lines = [line async for line in events(response)]
            assert lines.pop() == "[DONE]"
            answers = [json.loads(line) for line in lines]
        else:
            answers = [await response.json()]
    (packed,) = [answer["mesh"]["disclosure"] for answer in answers if "disclosure" in answer.get("mesh", {})]
    return Disclosure.from_bytes(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of each event."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].strip().decode()
