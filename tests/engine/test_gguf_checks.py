"""Known outputs checked in one pass: it agrees with what decoding makes, and with nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.gguf_frames import pack_check, unpack_check
from mesh.engine.protocol import CheckResult, Difference, Served, can_check
from mesh.errors import EngineFailed
from mesh.schema.request import MILLION
from tests.support.serves import Sink, request_for, serve
from tests.support.tiny_gguf import FIRST_BYTE_TOKEN, IM_END, vocabulary, write_tiny_gguf

PROMPT = [FIRST_BYTE_TOKEN + byte for byte in b"Once upon a time"]
LONG = [FIRST_BYTE_TOKEN + byte for byte in b"The quick brown fox jumps over the lazy dog, again and again. " * 3]
SAMPLED = {"temperature_u": 900_000, "top_p_u": 950_000, "seed": 7}
SETTINGS: list[dict[str, Any]] = [
    {},
    SAMPLED,
    SAMPLED | {"top_k": 12, "min_p_u": 20_000, "seed": 8},
    {"logit_bias": [[FIRST_BYTE_TOKEN + 5, 3 * MILLION], [9, -100 * MILLION]]},
    {"repetition_penalty_u": 1_300_000},
    SAMPLED | {"frequency_penalty_u": 700_000, "presence_penalty_u": 200_000, "repetition_penalty_u": 1_100_000},
]


async def check(
    engine: GgufEngine, prompt: Sequence[int], output: Sequence[int], max_tokens: int, *, cut: bool = False,
    **sampling: Any,
) -> CheckResult:  # fmt: skip
    return await engine.check(request_for(prompt, max_tokens, **sampling), prompt, output, cut=cut)


def agreed(served: Served) -> CheckResult:
    made = len(served.tokens)
    return CheckResult("agreed", made, (), served.outcome.finish, made)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize(("prompt", "length"), [(PROMPT, 1), (PROMPT[:1], 40), (LONG, 150)])
def test_it_agrees_with_what_decoding_makes(
    runner: asyncio.Runner, engine: GgufEngine, sampling: dict[str, Any], prompt: list[int], length: int
) -> None:
    assert can_check(engine)
    served = runner.run(serve(engine, prompt, length, ignore_eos=True, **sampling))
    result = runner.run(check(engine, prompt, served.tokens, length, ignore_eos=True, **sampling))
    assert result == agreed(served)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, len(vocabulary()) - 1), min_size=1, max_size=90),
    length=st.integers(1, 90),
    sampling=st.sampled_from(SETTINGS),
    seed=st.integers(0, 2**32 - 2),
    ignore_eos=st.booleans(),
)
def test_it_agrees_whatever_is_asked(
    runner: asyncio.Runner, engine: GgufEngine, prompt: list[int], length: int, sampling: dict[str, Any], seed: int,
    ignore_eos: bool,
) -> None:  # fmt: skip
    asked = {**sampling, "ignore_eos": ignore_eos} | ({"seed": seed} if "seed" in sampling else {})
    served = runner.run(serve(engine, prompt, length, **asked))
    assert runner.run(check(engine, prompt, served.tokens, length, **asked)) == agreed(served)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=str)
@pytest.mark.parametrize("at", [0, 1, 62, 63, 64, 99])
def test_the_first_difference_is_where_an_id_was_changed(
    runner: asyncio.Runner, engine: GgufEngine, sampling: dict[str, Any], at: int
) -> None:
    served = runner.run(serve(engine, PROMPT, 100, ignore_eos=True, **sampling))
    assert served.margins is not None
    output = [*served.tokens[:at], served.tokens[at] ^ 1, *served.tokens[at + 1 :]]
    result = runner.run(check(engine, PROMPT, output, 100, ignore_eos=True, **sampling))
    assert (result.kind, result.compared) == ("differs", 100)
    assert result.differences[0] == Difference(at, output[at], served.tokens[at], served.margins[at])


def test_after_a_difference_each_id_is_held_against_its_own_past(runner: asyncio.Runner, engine: GgufEngine) -> None:
    output = [*runner.run(serve(engine, PROMPT, 40, ignore_eos=True)).tokens]
    output[10] ^= 1
    result = runner.run(check(engine, PROMPT, output, 40, ignore_eos=True))
    prompt, rest = [*PROMPT, *output[:11]], output[11:]
    again = runner.run(check(engine, prompt, rest, len(rest), ignore_eos=True))
    assert [(d.at - 11, d.served, d.expected) for d in result.differences[1:]] == [
        (d.at, d.served, d.expected) for d in again.differences
    ]


def test_nothing_is_compared_after_a_difference_that_penalties_would_count(
    runner: asyncio.Runner, engine: GgufEngine
) -> None:
    penalized = {"frequency_penalty_u": 900_000, "ignore_eos": True}
    output = [*runner.run(serve(engine, PROMPT, 40, **penalized)).tokens]
    output[10] ^= 1
    result = runner.run(check(engine, PROMPT, output, 40, **penalized))
    assert (result.compared, len(result.differences), result.differences[0].margin) == (11, 1, None)


def test_an_output_that_is_cut_short_differs_at_its_end(runner: asyncio.Runner, engine: GgufEngine) -> None:
    served = runner.run(serve(engine, PROMPT, 40, ignore_eos=True))
    assert served.margins is not None
    for kept in (0, 1, 39):
        result = runner.run(check(engine, PROMPT, served.tokens[:kept], 40, ignore_eos=True))
        expected = Difference(kept, None, served.tokens[kept], served.margins[kept])
        assert (result.kind, result.differences) == ("differs", (expected,))


def test_an_output_that_goes_on_past_its_end_differs_there(runner: asyncio.Runner, engine: GgufEngine) -> None:
    whole = runner.run(serve(engine, PROMPT, 40, ignore_eos=True)).tokens
    ends = {"stop_ids": [whole[20]], "ignore_eos": True}
    first = whole.index(whole[20]) + 1
    longer = runner.run(check(engine, PROMPT, whole, 40, **ends))
    assert longer.differences == (Difference(first, whole[first], None),)
    assert runner.run(check(engine, PROMPT, whole[:first], 40, **ends)) == CheckResult(
        "agreed", first, (), "stop", first
    )
    past_the_limit = runner.run(check(engine, PROMPT, whole, 12, ignore_eos=True))
    assert past_the_limit.differences == (Difference(12, whole[12], None),)


def test_stop_strings_end_where_decoding_ends(runner: asyncio.Runner, engine: GgufEngine) -> None:
    whole = runner.run(serve(engine, PROMPT, 60, ignore_eos=True)).tokens
    text = b"".join(engine.piece(token) for token in whole).decode(errors="replace")
    stop = next(text[i : i + 2] for i in range(12, len(text)) if "\ufffd" not in text[i : i + 2])
    served = runner.run(serve(engine, PROMPT, 60, ignore_eos=True, stop=[stop]))
    assert served.outcome.finish == "stop"
    assert runner.run(check(engine, PROMPT, served.tokens, 60, ignore_eos=True, stop=[stop])) == agreed(served)


def test_the_end_of_the_text_ends_it(runner: asyncio.Runner, engine: GgufEngine) -> None:
    eager = {"logit_bias": [[IM_END, 1000 * MILLION]]}
    assert runner.run(check(engine, PROMPT, [IM_END], 40, **eager)) == CheckResult("agreed", 1, (), "stop", 1)
    assert runner.run(check(engine, PROMPT, [IM_END] * 2, 40, **eager)).differences == (Difference(1, IM_END, None),)
    assert runner.run(check(engine, PROMPT, [IM_END] * 2, 2, ignore_eos=True, **eager)).finish == "length"


def test_a_grammar_is_followed(runner: asyncio.Runner, engine: GgufEngine) -> None:
    digest = engine.learn('root ::= "yes" | "no" [a-f]*')
    for sampling in ({"grammar": digest}, {"grammar": digest, **SAMPLED}):
        served = runner.run(serve(engine, PROMPT, 12, **sampling))
        assert runner.run(check(engine, PROMPT, served.tokens, 12, **sampling)) == agreed(served)
        changed = [served.tokens[0] ^ 1, *served.tokens[1:]]
        assert runner.run(check(engine, PROMPT, changed, 12, **sampling)).differences[0].at == 0


@pytest.mark.parametrize("kept", [0, 1, 13])
def test_a_cut_output_is_not_judged_by_its_end(runner: asyncio.Runner, engine: GgufEngine, kept: int) -> None:
    served = runner.run(serve(engine, PROMPT, 40, Sink(), ignore_eos=True))
    result = runner.run(check(engine, PROMPT, served.tokens[:kept], 40, cut=True, ignore_eos=True))
    assert result == CheckResult("agreed", kept)


def test_a_cut_output_goes_on_no_longer_than_decoding(runner: asyncio.Runner, engine: GgufEngine) -> None:
    whole = runner.run(serve(engine, PROMPT, 20, ignore_eos=True)).tokens
    first = whole.index(whole[9]) + 1
    ends = {"stop_ids": [whole[9]], "ignore_eos": True}
    assert runner.run(check(engine, PROMPT, whole[:first], 40, cut=True, **ends)).kind == "agreed"
    assert runner.run(check(engine, PROMPT, whole, 40, cut=True, **ends)).kind == "differs"


def test_what_cannot_be_held_against_the_model_is_undecided(runner: asyncio.Runner, engine: GgufEngine) -> None:
    unknown = runner.run(check(engine, PROMPT, [len(vocabulary())], 4))
    assert (unknown.kind, unknown.reason) == ("undecided", "an id of the output is outside the vocabulary of 264")
    longer = runner.run(check(engine, PROMPT, [5] * 2040, 4))
    assert longer.kind == "undecided"
    assert "the context holds 2048" in (longer.reason or "")


def test_a_payload_of_another_request_fails(runner: asyncio.Runner, engine: GgufEngine) -> None:
    with pytest.raises(EngineFailed, match="prompt ids, the request says"):
        runner.run(engine.check(request_for(PROMPT, 4), PROMPT[1:], [5], cut=False))


def test_another_model_differs(runner: asyncio.Runner, engine: GgufEngine, tmp_path: Path) -> None:
    async def made_by_another() -> Served:
        other = await GgufEngine.start(GgufConfig(write_tiny_gguf(tmp_path / "other.gguf", seed=2), "tiny", slots=1))
        try:
            return await serve(other, PROMPT, 60, ignore_eos=True)
        finally:
            await other.close()

    served = runner.run(made_by_another())
    result = runner.run(check(engine, PROMPT, served.tokens, 60, ignore_eos=True))
    assert result.kind == "differs"
    assert len(result.differences) > 30


def test_checks_go_on_beside_serves_and_beside_each_other(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def all_at_once(outputs: list[tuple[int, ...]]) -> list[Any]:
        return await asyncio.gather(
            *(check(engine, LONG, output, 80, ignore_eos=True, **SAMPLED) for output in outputs),
            *(serve(engine, LONG, 80, ignore_eos=True, **SAMPLED) for _ in range(3)),
        )

    served = runner.run(serve(engine, LONG, 80, ignore_eos=True, **SAMPLED))
    results = runner.run(all_at_once([served.tokens, served.tokens[:50]]))
    assert results[0] == agreed(served)
    assert results[1].differences[0].at == 50
    assert results[2:] == [served] * 3


@pytest.mark.parametrize("other", [{"n_ubatch": 48}, {"kv_type": "f16", "n_ubatch": 64}], ids=str)
def test_prompts_that_begin_alike_are_held_each_against_its_own_outputs(
    runner: asyncio.Runner, tiny: Path, other: dict[str, Any]
) -> None:
    """Whatever came before: the same prompt, a longer one, a shorter one, a difference, one that was called off."""
    prompts = [LONG, LONG[:100], [*LONG[:130], *PROMPT], LONG[:64], LONG[:65], [*LONG[:47], 9], LONG]
    asked = {"ignore_eos": True, **SAMPLED}

    async def main() -> list[CheckResult]:
        engine = await GgufEngine.start(GgufConfig(tiny, "tiny", slots=1, **other))
        try:
            outputs = [(await serve(engine, prompt, 30, **asked)).tokens for prompt in prompts]
            results = []
            for prompt, output in zip(prompts, outputs, strict=True):
                changed = (output[0] ^ 1, *output[1:])
                await asyncio.wait({called_off := asyncio.ensure_future(check(engine, prompt, output, 30, **asked))},
                                   timeout=0)  # fmt: skip
                called_off.cancel()
                results += [await check(engine, prompt, each, 30, **asked) for each in (output, changed, output)]
            return results
        finally:
            await engine.close()

    results = runner.run(main())
    assert [(one.kind, one.differences[0].at if one.differences else None) for one in results] == [
        ("agreed", None), ("differs", 0), ("agreed", None)
    ] * len(prompts)  # fmt: skip


async def scored(path: Path, **other: Any) -> tuple[str | None, list[CheckResult], int]:
    """Of an engine of its own: why it decides nothing, the results of an honest output and of two that are changed, and
    its width."""
    engine = await GgufEngine.start(GgufConfig(path, "tiny", slots=1, **other))
    try:
        served = await serve(engine, LONG, 100, ignore_eos=True)
        outputs = [served.tokens, (5, *served.tokens[1:]), (*served.tokens[:-1], 5)]
        results = [await check(engine, LONG, output, 100, ignore_eos=True) for output in outputs]
        return engine.undecidable(request_for(LONG, 100)), results, engine.self_check.width
    finally:
        await engine.close()


def test_more_threads_and_wider_batches_are_measured_first(runner: asyncio.Runner, tiny: Path) -> None:
    reason, (honest, first, last), width = runner.run(scored(tiny, n_ubatch=48, check_threads=2, check_width=256))
    assert (reason, width) == (None, 48)
    assert honest == CheckResult("agreed", 100, (), "length", 100)
    assert (first.differences[0].at, last.differences[0].at) == (0, 99)


def test_where_wide_batches_change_bits_narrow_ones_are_used(runner: asyncio.Runner, tiny: Path) -> None:
    reason, (honest, first, last), width = runner.run(scored(tiny, kv_type="f16", check_threads=2))
    assert (reason, width) == (None, 32)
    assert honest == CheckResult("agreed", 100, (), "length", 100)
    assert (first.differences[0].at, last.differences[0].at) == (0, 99)


def test_where_no_width_gives_the_bits_of_decoding_a_check_is_a_score(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "f16.gguf", quant="f16")
    reason, results, width = runner.run(scored(path))
    assert (reason, width) == ("no batch of an output gives the bits of decoding it", 0)
    assert {(result.kind, result.reason, result.finish, result.compared) for result in results} == {
        ("undecided", reason, None, 100)
    }
    assert results[1].differences[0].at == 0


@pytest.mark.parametrize(
    "result",
    [
        CheckResult("agreed", 7, (), "stop", 7),
        CheckResult("agreed", 7),
        CheckResult("differs", 7, (Difference(0, 5, 6, 0.0), Difference(3, 1, 2), Difference(7, None, 3, 1.5))),
        CheckResult("differs", 2, (Difference(2, 8, None),)),
    ],
    ids=str,
)
def test_results_cross_the_pipe_as_they_are(result: CheckResult) -> None:
    assert unpack_check(pack_check(result), 7) == result


@pytest.mark.parametrize(
    "change",
    [
        {"compared": 8}, {"compared": -1}, {"compared": 6}, {"finish": "cancelled"}, {"differences": b"x"},
        pack_check(CheckResult("differs", 7, (Difference(8, 1, 2),))),
        pack_check(CheckResult("differs", 7, (Difference(2, 1, 2), Difference(2, 1, 2)))),
        pack_check(CheckResult("differs", 7, (Difference(2, 1, 1),))),
        pack_check(CheckResult("differs", 7, (Difference(2, -3, 1),))),
    ],
)  # fmt: skip
def test_results_that_no_check_gives_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EngineFailed, match="engine pipe: checked"):
        unpack_check(pack_check(CheckResult("agreed", 7, (), "stop", 7)) | change, 7)
