"""The recorded answers, which a fake server is held to, are still what a real one answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.record_vllm import FOLDER, answered
from tests.support.vllm_calls import CALLS, COUNTING, shape, stream_shape
from tests.vllm.servers import RealServer


def test_a_real_server_answers_in_the_shape_that_was_recorded(server: RealServer, model: Path) -> None:
    async def main() -> dict[str, Any]:
        async with aiohttp.ClientSession() as http:
            return {name: await answered(http, server.url, call) for name, call in (CALLS | COUNTING).items()}

    server.be(model)
    told = asyncio.run(main())
    path = FOLDER / f"vllm-{told['version']['body']['version']}.json"
    if not path.exists():
        pytest.fail(f"nothing is recorded of {path.stem}: run tests/support/record_vllm.py")
    recorded = json.loads(Path(path).read_text())
    for name, now in told.items():
        then = recorded[name]
        assert (now["status"], now["headers"]) == (then["status"], then["headers"]), name
        if name not in COUNTING:
            # this server counts what its cache had, and the recorded one did not
            now, then = _uncounted(now), _uncounted(then)
        assert shape(now.get("body")) == shape(then.get("body")), name
        assert stream_shape(now.get("events", [])) == stream_shape(then.get("events", [])), name


def _uncounted(told: dict[str, Any]) -> dict[str, Any]:
    for answer in (told.get("body"), *told.get("events", [])):
        if isinstance(answer, dict) and "usage" in answer:
            answer["usage"].pop("prompt_tokens_details", None)
    return told
