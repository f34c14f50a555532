"""Promises that a vLLM server breaks in mid-serve: each is caught, named and over with the next serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmTextEngine
from mesh.errors import (
    EngineError,
    EngineFailed,
)
from mesh.schema.request import MILLION
from tests.support.fake_completion import DONE
from tests.support.fake_vllm import FakeVllm, silence, status
from tests.support.serves import Sink, request_for, serve
from tests.support.vllm_engines import counted, cut_at, finishing, on, only, served_by
from tests.support.vllm_folder import EOS, encode

PROMPT = tuple(encode("tell me"))


def _late_id(event: Any) -> list[Any]:
    return [event, {**event, "choices": [event["choices"][0] | {"prompt_token_ids": None, "token_ids": [5]}]}]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "ids not known": ({"ignored": frozenset({"return_token_ids"})}, "no token ids although return_token_ids"),
    "usage not known": ({"ignored": frozenset({"stream_options"})}, "no usage although stream_options"),
    "ignore_eos not known": ({"ignored": frozenset({"ignore_eos"})}, "a stop although ignore_eos"),
    "max_tokens not known": ({"ignored": frozenset({"max_tokens"})}, "more than max_tokens 4 ids"),
    "prompt clipped": ({"clip": 3}, "an answer to another prompt: of 7 ids it read 3"),
    "too short": ({"most": 2}, "finish_reason length after 2 of 4 ids"),
    "finish abort": ({"edit": finishing(finish_reason="abort")}, "finish_reason abort"),
    "finish error": ({"edit": finishing(finish_reason="error")}, "finish_reason error"),
    "finish unknown": ({"edit": finishing(finish_reason="bored")}, "finish_reason bored"),
    "stop for a string": ({"edit": finishing(finish_reason="stop", stop_reason="xyz")}, "its ids do not spell"),
    "id after the finish": ({"edit": only(3, _late_id)}, "more after its finish_reason"),
    "usage of the answer": ({"edit": counted(completion_tokens=3)}, "usage of 3 tokens, 4 came"),
    "usage of the prompt": ({"edit": counted(prompt_tokens=3)}, "usage of 3 prompt tokens, 7 were given"),
    "ids outside": ({"edit": finishing(token_ids=[259])}, "sent id 259, outside the vocabulary of 259"),
    "ids missing later": ({"edit": finishing(token_ids=None)}, "a chunk without token_ids"),
    "error and [DONE]": (
        {"edit": only(2, lambda event: ({"error": {"message": "x", "type": "InternalServerError"}}, DONE))},
        "an error in mid-stream: type InternalServerError",
    ),
    "[DONE] without a finish": ({"edit": lambda n, event: () if 2 <= n <= 4 else (event,)}, "its last word before"),
    "nothing": ({"edit": lambda n, event: ()}, "its last word before the answer ended"),
    "cut in mid-event": ({"edit": cut_at(2, b'data: {"id": "cmpl')}, "the connection broke"),
    "cut between events": ({"edit": cut_at(2)}, "the connection broke"),
    "cut before [DONE]": ({"edit": cut_at(5)}, "the connection broke"),
    "not JSON": ({"edit": only(1, lambda event: (b"data: {\n\n",))}, "an event that is not JSON"),
    "not UTF-8": ({"edit": only(1, lambda event: (b'data: {"a": "\xff"}\n\n',))}, "an event that is not JSON"),
    "huge": ({"edit": lambda n, event: (b"data: " + b"9" * 5000,) if n else (event,)}, "an event of over 4000 bytes"),
    "another server": (
        {"edit": only(4, lambda event: (event | {"system_fingerprint": "vllm-0.33.0-dead"},))},
        "an answer as vllm-0.33.0-dead, it was vllm-0.32.0-0a1b2c3d when it was measured",
    ),
    "401": ({"instead": {"/v1/completions": status(401)}}, "answered 401"),
    "404": ({"instead": {"/v1/completions": status(404)}}, "answered 404"),
    "503": ({"instead": {"/v1/completions": status(503)}}, "answered 503"),
    "redirect": ({"instead": {"/v1/completions": status(307)}}, "answered 307"),
    "429": ({"instead": {"/v1/completions": status(429)}}, "answered 429"),
    "500": ({"instead": {"/v1/completions": status(500)}}, "answered 500"),
}


@pytest.fixture(scope="module")
def pair(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeVllm, VllmTextEngine]]:
    """A server and an engine that outlive each fault: the next serve is always as if nothing had been."""
    serving = served_by(tmp_path_factory.mktemp("broken"))
    yield runner.run(serving.__aenter__())
    runner.run(serving.__aexit__(None, None, None))


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_promise_fails_the_serve_by_name(
    runner: asyncio.Runner, pair: tuple[FakeVllm, VllmTextEngine], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("mesh.engine.vllm_stream.MAX_EVENT_BYTES", 4000)
    faults, words = BROKEN[fault]
    fake, engine = pair

    async def test() -> None:
        good = await serve(engine, PROMPT, 4, ignore_eos=True)
        kept = {name: getattr(fake, name) for name in faults}
        for name, value in faults.items():
            setattr(fake, name, value)
        sink = Sink()
        bias = {"logit_bias": [[EOS, 100 * MILLION]]} if "ignore_eos" in fault else {}
        with pytest.raises(EngineError) as caught:
            await engine.serve(request_for(PROMPT, 4, ignore_eos=True, **bias), PROMPT, sink)
        assert words in str(caught.value)
        assert bias or tuple(sink.tokens) == good.tokens[: len(sink.tokens)]
        for name, value in kept.items():
            setattr(fake, name, value)
        await engine.ready()
        assert (await serve(engine, PROMPT, 4, ignore_eos=True)).tokens == good.tokens

    runner.run(test())


def test_a_stream_without_a_last_word_is_whole_if_it_was_counted(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.edit = lambda n, event: () if event is DONE else (event,)
        assert (await serve(engine, PROMPT, 4, ignore_eos=True)).outcome.tokens_out == 4

    on(tmp_path, test)


def test_log_probabilities_that_do_not_come_leave_the_margins_out(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.ignored = frozenset({"logprobs"})
        assert (await serve(engine, PROMPT, 4, ignore_eos=True)).margins is None

    on(tmp_path, test, {"margins": True})


def test_a_server_that_takes_a_serve_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.instead["/v1/completions"] = silence
        with pytest.raises(EngineFailed, match="nothing came for too long"):
            await serve(engine, PROMPT, 4)

    on(tmp_path, test, {"idle_s": 1})
