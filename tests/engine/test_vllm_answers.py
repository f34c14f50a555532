"""Answers in one piece, answers past the prefix cache, and what a server's log-probabilities are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import ScoringEngine
from mesh.engine.vllm import VllmTextEngine
from mesh.errors import EngineError, EngineFailed, EngineUnavailable
from tests.support.fake_vllm import FakeVllm, silence, status
from tests.support.serves import Sink, request_for, serve
from tests.support.vllm_engines import on
from tests.support.vllm_folder import EOS, encode

PROMPT = tuple(encode("tell me"))
LONG = tuple(encode("tell me about " + "the " * 20))
SEEDED: dict[str, Any] = {"temperature_u": 800_000, "seed": 5}


class Patient(Sink):
    """One that shows nothing before the end."""

    taken_whole = True


class Cold(Sink):
    cold = True


async def at_once(engine: VllmTextEngine, max_tokens: int, **sampling: Any) -> tuple[tuple[int, ...], Any]:
    served = await serve(engine, PROMPT, max_tokens, Patient(), **sampling)
    return served.tokens, served.outcome


@pytest.mark.parametrize(
    "sampling",
    [{"ignore_eos": True}, {}, {"ignore_eos": True, **SEEDED}, {"stop": ["e", "a"]}, {"stop_ids": [encode("e")[0]]}],
)
def test_an_answer_in_one_piece_is_the_streamed_one(tmp_path: Path, sampling: dict[str, Any]) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        streamed = await serve(engine, PROMPT, 40, **sampling)
        assert fake.bodies[-1]["stream"] is True
        assert await at_once(engine, 40, **sampling) == (streamed.tokens, streamed.outcome)
        assert fake.bodies[-1]["stream"] is False
        assert "stream_options" not in fake.bodies[-1]

    on(tmp_path, test)


def test_a_long_answer_is_streamed_so_that_what_is_cut_is_counted(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        for tokens, streamed in ((64, False), (65, True)):
            assert len((await at_once(engine, tokens, ignore_eos=True))[0]) == tokens
            assert fake.bodies[-1]["stream"] is streamed

    on(tmp_path, test)


def test_an_answer_in_one_piece_is_given_up_by_leaving(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.hold_at = 2
        sink = Patient()
        serving = asyncio.create_task(engine.serve(request_for(PROMPT, 8, ignore_eos=True), PROMPT, sink))
        await fake.held.wait()
        sink.cancelled.set()
        served = await serving
        assert (served.tokens, served.outcome.finish, served.outcome.tokens_out) == ((), "cancelled", None)
        await fake.until(lambda: fake.aborted == 1)
        fake.hold_at = None
        assert len((await at_once(engine, 8, ignore_eos=True))[0]) == 8

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ignored": frozenset({"return_token_ids"})}, "no token ids although return_token_ids"),
        ({"ignored": frozenset({"max_tokens"})}, "more than max_tokens 4 ids"),
        ({"ignored": frozenset({"stream"})}, None),
        ({"clip": 3}, "an answer to another prompt: of 7 ids it read 3"),
        ({"most": 2}, "finish_reason length after 2 of 4 ids"),
        ({"fingerprint": "vllm-0.33.0-dead"}, "an answer as vllm-0.33.0-dead"),
        ({"instead": {"/v1/completions": status(200, {"choices": []})}}, "neither a choice nor usage"),
        ({"instead": {"/v1/completions": status(200, {"choices": [], "usage": {}})}}, "usage that does not count"),
        ({"instead": {"/v1/completions": status(500)}}, "answered 500"),
    ],
)
def test_a_promise_that_is_broken_in_one_piece_is_named(
    tmp_path: Path, fault: dict[str, Any], words: str | None
) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        for name, value in fault.items():
            setattr(fake, name, value)
        bias = {"logit_bias": [[EOS, 100_000_000]]} if words and "max_tokens" in words else {}
        if words is None:
            assert len((await at_once(engine, 4, ignore_eos=True))[0]) == 4
            return
        with pytest.raises(EngineError) as caught:
            await at_once(engine, 4, ignore_eos=True, **bias)
        assert words in str(caught.value)

    on(tmp_path, test)


def test_a_server_that_is_silent_over_an_answer_in_one_piece_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.engine.vllm._SLOWEST_TOKEN_S", 0.01)

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.instead = {"/v1/completions": silence}
        with pytest.raises(EngineFailed, match="nothing came for too long"):
            await at_once(engine, 4)

    on(tmp_path, test, {"idle_s": 1})


def test_a_cold_serve_takes_nothing_from_the_cache(tmp_path: Path) -> None:
    """VL-02: a replay asks for this, and each time under another salt."""

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.runs_cold
        warm = [(await serve(engine, LONG, 2, ignore_eos=True)).outcome.cache_hit_tokens for _ in range(2)]
        cold = [(await serve(engine, LONG, 2, Cold(), ignore_eos=True)).outcome.cache_hit_tokens for _ in range(2)]
        assert (warm, cold) == ([0, 80], [0, 0])
        salts = [body.get("cache_salt") for body in fake.bodies[-4:]]
        assert salts[:2] == [None, None]
        assert len({*salts[2:], None}) == 3

    on(tmp_path, test, counts_cached=True)


def test_a_server_that_knows_no_salt_is_caught(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await serve(engine, LONG, 2, ignore_eos=True)
        fake.ignored = frozenset({"cache_salt"})
        with pytest.raises(EngineFailed, match="usage of 80 cached tokens under a salt of its own"):
            await serve(engine, LONG, 2, Cold(), ignore_eos=True)

    on(tmp_path, test, counts_cached=True)


@pytest.mark.parametrize("kind", ["raw", "processed", "logits"])
def test_which_log_probabilities_a_server_gives_is_a_setting(tmp_path: Path, kind: str) -> None:
    """VL-04: distances between scaled values are none between the model's own, and are not told as such."""

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.settings["logprobs"] == engine.self_check.logprobs == kind
        assert isinstance(engine, ScoringEngine)
        assert (engine.max_scores >= 0) == (kind == "raw")
        served = await serve(engine, PROMPT, 4, ignore_eos=True, **SEEDED)
        assert (served.margins is not None) == (kind == "raw")

    on(tmp_path, test, {"margins": True}, logprobs=kind)


def test_a_server_that_gives_other_log_probabilities_than_before_is_refused(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await fake.restart(logprobs="processed")
        with pytest.raises(EngineUnavailable, match=r"has other settings \(logprobs\) than before"):
            await engine.ready()

    on(tmp_path, test)
