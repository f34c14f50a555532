"""The fake server is kept honest: each call answered by it as a real one answered when it was recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm_http import read_metrics
from mesh.engine.vllm_stream import Chunk, Event, EventReader, Usage, read_answer
from tests.support.fake_completion import DONE
from tests.support.fake_vllm import frame, running
from tests.support.record_vllm import answers
from tests.support.vllm_calls import (
    CALLS,
    COUNTING,
    KEY,
    KEYLESS,
    PROMPT,
    STOPPED,
    midst_shape,
    shape,
    stream_shape,
)

RECORDED = sorted((Path(__file__).parent / "recorded").glob("vllm-*.json"))


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(request.param.read_text())
    return told


@pytest.fixture(scope="module")
def faked() -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with running() as fake, running(counts_cached=True, key=KEY) as counting:
            return await answers(fake.url, counting.url)

    return asyncio.run(main())


@pytest.mark.parametrize("name", [*CALLS, *STOPPED, *COUNTING, *KEYLESS])
def test_fake_answers_in_the_shape_of_a_real_server(recorded: dict[str, Any], faked: dict[str, Any], name: str) -> None:
    real, fake = recorded[name], faked[name]
    assert fake["status"] == real["status"]
    assert fake["headers"] == real["headers"]
    assert shape(fake.get("body")) == shape(real.get("body"))
    assert stream_shape(fake.get("events", [])) == stream_shape(real.get("events", []))
    midst = [midst_shape(told.get("events", [])) for told in (fake, real)]
    assert midst[0] == midst[1] or [] in midst


def test_fake_counts_and_ends_as_a_real_server_does(recorded: dict[str, Any], faked: dict[str, Any]) -> None:
    for name in ("plain", "plain with logprobs", "plain, sampled", "clipped to the context"):
        real, fake = recorded[name]["body"], faked[name]["body"]
        assert fake["usage"] == real["usage"]
        assert fake["choices"][0]["finish_reason"] == real["choices"][0]["finish_reason"]
        assert fake["choices"][0]["prompt_token_ids"] == real["choices"][0]["prompt_token_ids"]
    for told in (recorded, faked):
        assert told["stream"]["events"][-1] == "[DONE]"
        streamed = [e["choices"][0]["token_ids"] for e in told["stream"]["events"][:-2]]
        assert [token for ids in streamed for token in ids] == told["plain"]["body"]["choices"][0]["token_ids"]


def test_fake_has_the_metrics_that_are_read(recorded: dict[str, Any], faked: dict[str, Any]) -> None:
    real, fake = (read_metrics("\n".join(told["metrics"]["metrics"]).encode()) for told in (recorded, faked))
    assert real.started_s is not None
    assert fake.started_s is not None
    assert fake.cache.keys() <= real.cache.keys()
    assert {"block_size", "cache_dtype", "enable_prefix_caching"} <= fake.cache.keys()


def test_what_was_recorded_is_understood(recorded: dict[str, Any]) -> None:
    """Not the fake's answers but a real server's, through the code that reads them."""

    def events(name: str) -> list[Event]:
        wire = b"".join(DONE if e == "[DONE]" else frame(e) for e in recorded[name]["events"])
        return list(EventReader().feed(wire))

    streamed = [event for event in events("stream with logprobs") if isinstance(event, Chunk)]
    whole = read_answer(recorded["plain with logprobs"]["body"])
    assert isinstance(whole, Chunk)
    assert whole.tokens == tuple(token for chunk in streamed for token in chunk.tokens or ())
    assert whole.prompt == streamed[0].prompt == tuple(PROMPT)
    assert whole.chosen == tuple(value for chunk in streamed for value in chunk.chosen or ())
    assert all(best is not None and best[0] >= best[1] for best in whole.best or ())
    assert (streamed[-1].finish, whole.finish) == ("length", "length")
    (usage,) = [event for event in events("stream") if isinstance(event, Usage)]
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (len(PROMPT), 4, None)
    assert usage.fingerprint == whole.fingerprint
    assert [c.stop for c in events(STOPPED[0]) if isinstance(c, Chunk)][-1] == "he"
    assert all(c.tokens is None for c in events("stream without ids") if isinstance(c, Chunk))


def test_recorded_answers_tell_nothing_of_the_machine_they_come_from() -> None:
    for path in RECORDED:
        text = path.read_text()
        assert "/home" not in text
        assert "/root" not in text
        assert "/tmp" not in text
        assert '"root": "masked"' in text
