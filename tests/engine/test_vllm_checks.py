"""Known outputs checked by a vLLM server in one pass over its prompt's log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import CheckResult, Difference, can_check
from mesh.engine.vllm import VllmEngine, VllmTextEngine
from mesh.engine.vllm_stream import read_prompt_logprobs
from mesh.errors import EngineFailed
from tests.support.fake_vllm import FakeVllm, status
from tests.support.serves import request_for, serve
from tests.support.vllm_engines import on
from tests.support.vllm_folder import EOS, VOCABULARY, encode

PROMPT = tuple(encode("tell me"))


async def check(
    engine: VllmTextEngine, output: Sequence[int], max_tokens: int = 40, *, cut: bool = False, **sampling: Any
) -> CheckResult:
    return await engine.check(request_for(PROMPT, max_tokens, **sampling), PROMPT, output, cut=cut)


@pytest.mark.parametrize("sampling", [{}, {"ignore_eos": True}, {"stop": ["e", "a"]}, {"stop_ids": [encode("s")[0]]}])
def test_it_agrees_with_what_decoding_makes(tmp_path: Path, sampling: dict[str, Any]) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert can_check(engine)
        for max_tokens in (1, 2, 60):
            served = await serve(engine, PROMPT, max_tokens, **sampling)
            made = len(served.tokens)
            result = await check(engine, served.tokens, max_tokens, **sampling)
            assert result == CheckResult("agreed", made, (), served.outcome.finish, made)

    on(tmp_path, test)


def test_a_check_is_one_request_past_the_prefix_cache(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        served = await serve(engine, PROMPT, 40, ignore_eos=True)
        await check(engine, served.tokens, ignore_eos=True)  # measures first
        before = len(fake.bodies)
        await check(engine, served.tokens, ignore_eos=True)
        (body,) = fake.bodies[before:]
        assert body["prompt"] == [*PROMPT, *served.tokens[:-1]]
        assert (body["max_tokens"], body["temperature"]) == (1, 0)
        assert body["cache_salt"] not in {other.get("cache_salt") for other in fake.bodies[:before]}

    on(tmp_path, test)


@pytest.mark.parametrize("at", [0, 1, 39])
def test_the_first_difference_is_where_an_id_was_changed(tmp_path: Path, at: int) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        served = await serve(engine, PROMPT, 40, ignore_eos=True)
        output = [*served.tokens[:at], served.tokens[at] ^ 1, *served.tokens[at + 1 :]]
        result = await check(engine, output, ignore_eos=True)
        first = result.differences[0]
        assert (first.at, first.served, first.expected) == (at, output[at], served.tokens[at])
        assert (first.margin or 0) > 0

    on(tmp_path, test)


def test_an_output_ends_where_decoding_ends(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        whole = (await serve(engine, PROMPT, 40, ignore_eos=True)).tokens
        for kept in (0, 1, 39):
            result = await check(engine, whole[:kept], ignore_eos=True)
            assert [(d.at, d.served, d.expected) for d in result.differences] == [(kept, None, whole[kept])]
        first = whole.index(whole[20]) + 1
        longer = await check(engine, whole, ignore_eos=True, stop_ids=[whole[20]])
        assert longer.differences == (Difference(first, whole[first], None),)
        assert (await check(engine, whole, 12, ignore_eos=True)).kind == "undecided"

    on(tmp_path, test)


def test_an_output_that_was_cut_is_not_judged_by_its_end(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        whole = (await serve(engine, PROMPT, 40, ignore_eos=True)).tokens
        for kept in (0, 1, 17):
            assert await check(engine, whole[:kept], cut=True, ignore_eos=True) == CheckResult("agreed", kept)
        assert (await check(engine, [*whole[:3], EOS, *whole[3:9]], cut=True)).kind == "differs"

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"temperature_u": 800_000, "seed": 5}, "drew"),
        ({"frequency_penalty_u": 500_000}, "penalty"),
        ({"logit_bias": [[40, 3_000_000]]}, "bias"),
    ],
)
def test_what_log_probabilities_do_not_show_is_undecided(tmp_path: Path, sampling: dict[str, Any], why: str) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        served = await serve(engine, PROMPT, 20, **sampling)
        reason = engine.undecidable(request_for(PROMPT, 20, **sampling))
        assert why in (reason or "")
        result = await check(engine, served.tokens, 20, **sampling)
        assert (result.kind, result.reason, result.finish) == ("undecided", reason, None)

    on(tmp_path, test)


def test_a_server_whose_log_probabilities_are_not_the_models_decides_nothing(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.undecidable(request_for(PROMPT, 4)) == "this server gives no log-probabilities of the model's own"

    on(tmp_path, test, logprobs="processed")


def test_a_server_whose_passes_are_far_from_decoding_is_not_believed(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        served = await serve(engine, PROMPT, 40, ignore_eos=True)
        result = await check(engine, served.tokens, ignore_eos=True)
        assert result.kind == "undecided"
        assert "differ by 0.015" in (result.reason or "")

    on(tmp_path, test, passes_off=2**-6)


def test_a_choice_that_is_close_is_left_to_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        served = await serve(engine, PROMPT, 40, ignore_eos=True)
        monkeypatch.setattr("mesh.engine.vllm_checks.LEAST_SURE", 0.02)  # of what the fake one has, some are closer
        result = await check(engine, served.tokens, ignore_eos=True)
        assert (result.kind, result.differences) == ("undecided", ())
        assert "too close" in (result.reason or "")
        changed = [served.tokens[0] ^ 1, *served.tokens[1:]]
        far = await check(engine, changed, ignore_eos=True)
        assert far.kind in ("differs", "undecided")
        assert far.differences[0].at == 0

    on(tmp_path, test)


def test_an_id_outside_the_vocabulary_is_undecided(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert (await check(engine, [VOCABULARY])).reason == f"an id is outside the vocabulary of {VOCABULARY}"
        with pytest.raises(EngineFailed, match="prompt ids, the request says"):
            await engine.check(request_for(PROMPT, 4), PROMPT[1:], [5])

    on(tmp_path, test)


def test_an_engine_without_a_tokenizer_checks_nothing() -> None:
    assert not hasattr(VllmEngine, "check")


def test_a_server_that_fails_fails_the_check(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.instead["/v1/completions"] = status(500)
        with pytest.raises(EngineFailed):
            await check(engine, [5])

    on(tmp_path, test)


def test_a_server_that_knows_no_prompt_logprobs_is_named(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        with pytest.raises(EngineFailed, match="prompt_logprobs that do not fit"):
            await check(engine, [5])

    on(tmp_path, test, ignored=frozenset({"prompt_logprobs"}))


@pytest.mark.parametrize(
    "entries",
    [
        None, [], [None], [None, None], [None, {}], [None, {"5": {"logprob": -1.0}}],
        [None, {"5": {"logprob": -1.0}, "x": {"logprob": -2.0}}], [None, {"5": {"logprob": -1.0}, "6": {}}],
        [None, {"5": {"logprob": float("nan")}, "6": {"logprob": -1.0}}], [None, {"5": -1.0, "6": -2.0}],
    ],
    ids=str,
)  # fmt: skip
def test_prompt_logprobs_that_are_none_are_refused(entries: Any) -> None:
    with pytest.raises(EngineFailed, match="prompt_logprobs"):
        read_prompt_logprobs({"choices": [{"prompt_logprobs": entries}]}, 2)


def test_prompt_logprobs_are_ranked_by_value_and_then_by_id() -> None:
    entry = {"300": {"logprob": -9.5, "rank": 2}, "7": {"logprob": -1.5, "rank": 1}, "6": {"logprob": -1.5, "rank": 1}}
    answer = {"choices": [{"prompt_logprobs": [None, entry]}]}
    assert read_prompt_logprobs(answer, 2) == [((6, -1.5), (7, -1.5), (300, -9.5))]
