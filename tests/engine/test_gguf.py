"""Serving on a tiny model through a real child process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.protocol import ServingEngine, TextEngine
from mesh.errors import BadRequest, EngineFailed, EngineUnavailable, ModelFileError
from mesh.identity.weights import gguf_weights
from mesh.schema.ids import ContentId
from mesh.schema.outcome import Fidelity
from mesh.schema.receipt import EngineBlock
from mesh.schema.request import MILLION
from tests.support.serves import Sink, request_for, serve
from tests.support.tiny_gguf import (
    CHATML,
    CHATML_WITHOUT_SYSTEM,
    END_OF_TEXT,
    FIRST_BYTE_TOKEN,
    IM_END,
    IM_START,
    vocabulary,
    write_tiny_gguf,
)

PROMPT = [FIRST_BYTE_TOKEN + byte for byte in b"Once upon a time"]
OTHER = [FIRST_BYTE_TOKEN + byte for byte in b"The quick brown fox jumps over the lazy dog, again and again"]
SAMPLED = {"temperature_u": 900_000, "top_p_u": 950_000, "seed": 7}


def test_the_engine_says_what_a_receipt_needs(engine: GgufEngine, tiny: Path) -> None:
    serving: ServingEngine = engine
    request = request_for(PROMPT, 4)
    EngineBlock.of(
        backend_id=serving.backend_id, recipe_id=serving.recipe_id, fidelity=int(serving.fidelity),
        deterministic=serving.deterministic(request), settings_digest=ContentId.of("settings", dict(serving.settings)),
        process=serving.process, weights_digest=serving.weights_digest, template_digest=serving.template_digest,
    )  # fmt: skip
    assert isinstance(engine, TextEngine)
    assert engine.weights_digest == gguf_weights(tiny).digest
    assert engine.template_digest == ContentId.of_bytes(CHATML.encode())
    assert (engine.fidelity, engine.precision) == (Fidelity.F2, "Q8_0")
    assert (engine.context_tokens, engine.slots) == (2048, 2)
    assert engine.est_uj_per_token is not None
    assert engine.est_uj_per_token > 0
    assert engine.settings["template_source"] == "file"


def test_the_default_settings_are_measured_to_give_the_same_bits(engine: GgufEngine) -> None:
    assert engine.self_check.results == {"step": None, "together": None, "warm": None}
    assert engine.deterministic(request_for(PROMPT, 4))


def test_an_output_has_a_margin_for_each_token_and_true_counts(runner: asyncio.Runner, engine: GgufEngine) -> None:
    served = runner.run(serve(engine, PROMPT, 40, ignore_eos=True))
    outcome = served.outcome
    assert (outcome.finish, outcome.counted_by) == ("length", "engine")
    assert (outcome.tokens_in, outcome.tokens_out, outcome.tokens_accepted) == (len(PROMPT), 40, 40)
    assert (outcome.cache_hit_tokens, outcome.spec_proposed) == (0, 0)
    assert (outcome.weights_digest, outcome.precision) == (engine.weights_digest, "Q8_0")
    assert served.margins is not None
    assert len(served.margins) == 40
    assert min(served.margins) >= 0


def test_greedy_serves_side_by_side_equal_each_alone(runner: asyncio.Runner, engine: GgufEngine) -> None:
    # more serves than slots, a prompt longer than a chunk, and outputs of different lengths
    cases = [(PROMPT, 60), (OTHER * 4, 30), (OTHER, 90), (PROMPT[:1], 20), (OTHER[:7], 50)]

    async def together() -> list[Any]:
        return await asyncio.gather(*(serve(engine, p, n, ignore_eos=True) for p, n in cases))

    alone = [runner.run(serve(engine, p, n, ignore_eos=True)) for p, n in cases]
    for one, other in zip(runner.run(together()), alone, strict=True):
        assert (one.tokens, one.margins) == (other.tokens, other.margins)


def test_seeded_sampling_repeats_and_other_seeds_differ(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def together() -> list[Any]:
        return await asyncio.gather(*(serve(engine, PROMPT, 40, **{**SAMPLED, "seed": s}) for s in (7, 7, 8)))

    first, again, different = runner.run(together())
    assert first.tokens == again.tokens
    assert first.tokens != different.tokens
    assert first.margins is not None


def test_another_process_gives_the_same_ids(runner: asyncio.Runner, engine: GgufEngine, tiny: Path) -> None:
    async def fresh() -> tuple[Any, Any, bytes]:
        other = await GgufEngine.start(GgufConfig(tiny, "tiny", slots=1))
        try:
            greedy, sampled = await serve(other, PROMPT, 60), await serve(other, PROMPT, 60, **SAMPLED)
        finally:
            await other.close()
        return greedy, sampled, other.process

    greedy, sampled, process = runner.run(fresh())
    assert greedy == runner.run(serve(engine, PROMPT, 60))
    assert sampled == runner.run(serve(engine, PROMPT, 60, **SAMPLED))
    assert process != engine.process


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p_u": MILLION}, {"top_p_u": 1}, {"temperature_u": 1}], ids=str)
def test_sampling_that_leaves_one_choice_is_greedy(
    runner: asyncio.Runner, engine: GgufEngine, narrow: dict[str, int]
) -> None:
    greedy = runner.run(serve(engine, PROMPT, 20))
    assert runner.run(serve(engine, PROMPT, 20, **(SAMPLED | {"top_p_u": MILLION} | narrow))).tokens == greedy.tokens


def test_a_bias_decides_and_leaves_no_margin(runner: asyncio.Runner, engine: GgufEngine) -> None:
    wanted = FIRST_BYTE_TOKEN + ord("z")
    served = runner.run(serve(engine, PROMPT, 5, logit_bias=[[wanted, 1000 * MILLION]]))
    assert served.tokens == (wanted,) * 5
    assert served.margins is None
    first = runner.run(serve(engine, PROMPT, 1)).tokens[0]
    assert runner.run(serve(engine, PROMPT, 1, logit_bias=[[first, -1000 * MILLION]])).tokens != (first,)


@pytest.mark.parametrize("penalty", ["frequency_penalty_u", "presence_penalty_u"])
def test_a_penalty_counts_the_output_and_not_the_prompt(
    runner: asyncio.Runner, engine: GgufEngine, penalty: str
) -> None:
    first = runner.run(serve(engine, PROMPT, 1)).tokens[0]
    prompt = [first, *PROMPT]
    plain = runner.run(serve(engine, prompt, 1)).tokens
    served = runner.run(serve(engine, prompt, 60, ignore_eos=True, **{penalty: 1000 * MILLION}))
    assert served.tokens[:1] == plain
    assert len(set(served.tokens)) == 60
    assert served.margins is None


def test_a_repetition_penalty_counts_the_prompt(runner: asyncio.Runner, engine: GgufEngine) -> None:
    everything = list(range(len(vocabulary())))
    kept = [i for i in everything if i not in (100, 101)]
    served = runner.run(serve(engine, kept, 1, repetition_penalty_u=100 * MILLION))
    plain = runner.run(serve(engine, kept, 1))
    assert plain.tokens[0] in kept
    assert served.tokens != plain.tokens


def test_a_stop_string_that_crosses_tokens_ends_the_output(runner: asyncio.Runner, engine: GgufEngine) -> None:
    tokens = runner.run(serve(engine, PROMPT, 200, ignore_eos=True)).tokens
    pieces = [engine.piece(token) for token in tokens]
    at = next(i for i in range(20, 199) if (pieces[i] + pieces[i + 1]).isascii() and pieces[i] and pieces[i + 1])
    stop = (pieces[at] + pieces[at + 1]).decode()
    end = next(i for i in range(200) if stop.encode() in b"".join(pieces[: i + 1]))
    served = runner.run(serve(engine, PROMPT, 200, ignore_eos=True, stop=["never this", stop]))
    assert (served.tokens, served.outcome.finish) == (tokens[: end + 1], "stop")


def test_a_stop_id_ends_the_output_and_is_committed(runner: asyncio.Runner, engine: GgufEngine) -> None:
    tokens = runner.run(serve(engine, PROMPT, 10)).tokens
    served = runner.run(serve(engine, PROMPT, 10, stop_ids=[tokens[4]]))
    end = tokens.index(tokens[4])
    assert (served.tokens, served.outcome.finish) == (tokens[: end + 1], "stop")


def test_stop_wins_over_length(runner: asyncio.Runner, engine: GgufEngine) -> None:
    tokens = runner.run(serve(engine, PROMPT, 1)).tokens
    assert runner.run(serve(engine, PROMPT, 1, stop_ids=list(tokens))).outcome.finish == "stop"


@pytest.mark.parametrize("end", [IM_END, END_OF_TEXT])
def test_an_end_token_ends_the_output_unless_ignored(runner: asyncio.Runner, engine: GgufEngine, end: int) -> None:
    forced = {"logit_bias": [[end, 1000 * MILLION]]}
    served = runner.run(serve(engine, PROMPT, 3, **forced))
    assert (served.tokens, served.outcome.finish) == ((end,), "stop")
    served = runner.run(serve(engine, PROMPT, 3, **forced, ignore_eos=True))
    assert (served.tokens, served.outcome.finish) == ((end,) * 3, "length")


def test_cancelling_in_mid_stream_keeps_what_was_made(runner: asyncio.Runner, engine: GgufEngine) -> None:
    whole = runner.run(serve(engine, PROMPT, 500, ignore_eos=True)).tokens
    served = runner.run(serve(engine, PROMPT, 2000, Sink(cancel_after=5), ignore_eos=True))
    assert served.outcome.finish == "cancelled"
    assert 5 <= len(served.tokens) < 500
    assert served.outcome.tokens_out == len(served.tokens)
    assert served.tokens == whole[: len(served.tokens)]


def test_cancelling_reaches_a_serve_that_waits_or_reads_its_prompt(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def cancel() -> list[Any]:
        sinks = [Sink() for _ in range(3)]  # two get a slot and read, one waits for its turn
        tasks = [asyncio.create_task(serve(engine, OTHER * 30, 100, sink)) for sink in sinks]
        await engine.encode("", special=False)  # the child answers this after it took the orders in
        for sink in sinks:
            sink.cancelled.set()
        return await asyncio.gather(*tasks)

    for served in runner.run(cancel()):
        assert (served.outcome.finish, served.tokens) == ("cancelled", ())
        assert served.outcome.tokens_in == len(OTHER) * 30


def test_a_serve_cancelled_before_it_began_makes_nothing(runner: asyncio.Runner, engine: GgufEngine) -> None:
    sink = Sink()
    sink.cancelled.set()
    assert runner.run(serve(engine, PROMPT, 5, sink)).outcome.finish == "cancelled"


def test_a_task_that_is_cancelled_leaves_its_slot_to_others(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def abandon() -> Any:
        sinks = [Sink() for _ in range(2)]
        tasks = [asyncio.create_task(serve(engine, PROMPT, 2000, sink, ignore_eos=True)) for sink in sinks]
        for sink in sinks:
            await sink.first.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        return await serve(engine, PROMPT, 8)

    assert runner.run(abandon()) == runner.run(serve(engine, PROMPT, 8))


def test_a_sink_that_fails_fails_its_own_serve_only(runner: asyncio.Runner, engine: GgufEngine) -> None:
    class Broken(Sink):
        def put(self, token: int) -> None:
            raise RuntimeError("the token was 'secret'")

    async def both() -> list[Any]:
        return await asyncio.gather(
            serve(engine, PROMPT, 30, Broken()), serve(engine, PROMPT, 30), return_exceptions=True
        )

    failed, served = runner.run(both())
    assert isinstance(failed, EngineFailed)
    assert "secret" not in str(failed)
    assert served == runner.run(serve(engine, PROMPT, 30))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (request_for(PROMPT, 4, grammar=bytes(32)), "grammar"),
        (request_for(PROMPT, 4, logit_bias=[[9999, 1]]), "logit_bias"),
        (request_for(PROMPT, 2048), "max_tokens"),
        (request_for([], 4), "prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_engine_cannot_do_is_refused_by_its_field(
    runner: asyncio.Runner, engine: GgufEngine, request_: Any, field: str
) -> None:
    refusal = engine.refusal(request_)
    assert refusal is not None
    assert refusal.startswith(f"{field}: ")
    with pytest.raises(EngineFailed, match=field):
        runner.run(engine.serve(request_, [PROMPT[0]] * request_.prompt_tokens, Sink()))


def test_a_serve_that_fills_the_context_to_the_last_token_works(runner: asyncio.Runner, engine: GgufEngine) -> None:
    prompt = (OTHER * 40)[: engine.context_tokens - 10]
    assert runner.run(serve(engine, prompt, 10, ignore_eos=True)).outcome.tokens_out == 10


@pytest.mark.parametrize("prompt", [PROMPT[1:], [*PROMPT[1:], 9999]], ids=["length", "id"])
def test_a_prompt_that_is_not_the_requests_never_reaches_the_library(
    runner: asyncio.Runner, engine: GgufEngine, prompt: list[int]
) -> None:
    with pytest.raises(EngineFailed, match="prompt id"):
        runner.run(engine.serve(request_for(PROMPT, 4), prompt, Sink()))


def test_text_goes_to_ids_and_back(runner: asyncio.Runner, engine: GgufEngine) -> None:
    text = "日本 and 👋🏽\n\x00 <|im_end|>"
    plain = runner.run(engine.encode(text, special=False))
    assert b"".join(map(engine.piece, plain)).decode() == text
    control = runner.run(engine.encode(text, special=True))
    assert control[-1] == IM_END
    assert IM_END not in plain
    assert engine.piece(IM_END) == b""
    assert runner.run(engine.encode("", special=True)) == []


@pytest.mark.parametrize("token", [-1, len(vocabulary())])
def test_an_id_outside_the_vocabulary_has_no_piece(engine: GgufEngine, token: int) -> None:
    with pytest.raises(BadRequest, match=f"token {token}"):
        engine.piece(token)


def test_a_chat_is_rendered_up_to_where_the_assistant_speaks(runner: asyncio.Runner, engine: GgufEngine) -> None:
    text = runner.run(engine.render([{"role": "user", "content": "hi"}]))
    assert text.endswith("<|im_start|>assistant\n")
    assert runner.run(engine.encode(text, special=True)).count(IM_START) == 2
    with pytest.raises(BadRequest, match="messages: empty"):
        runner.run(engine.render([]))


async def with_engine(config: GgufConfig, use: Any) -> Any:
    engine = await GgufEngine.start(config)
    try:
        return await use(engine)
    finally:
        await engine.close()


def test_a_model_that_wants_a_first_id_gets_one_and_not_two(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "bos.gguf", add_bos=True)

    async def encode(engine: GgufEngine) -> tuple[list[int], list[int]]:
        return await engine.encode("a", special=False), await engine.encode("<|im_start|>a", special=True)

    plain, spelled = runner.run(with_engine(GgufConfig(path, "m", slots=1), encode))
    assert plain == spelled == [IM_START, FIRST_BYTE_TOKEN + ord("a")]


SYSTEM = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize(("template", "code"), [(None, "no_chat_template"), (CHATML_WITHOUT_SYSTEM, "template_error")])
def test_a_chat_that_the_model_has_no_words_for_is_refused(
    runner: asyncio.Runner, tmp_path: Path, template: str | None, code: str
) -> None:
    path = write_tiny_gguf(tmp_path / "t.gguf", template=template)

    async def chat(engine: GgufEngine) -> tuple[Any, str]:
        with pytest.raises(BadRequest) as caught:
            await engine.render(SYSTEM)
        assert caught.value.code == code
        return engine.template_digest, engine.settings["template_source"]

    digest = None if template is None else ContentId.of_bytes(template.encode())
    expected = (digest, "none" if template is None else "file")
    assert runner.run(with_engine(GgufConfig(path, "m", slots=1), chat)) == expected


def test_a_template_from_the_configuration_shows_as_such(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "t.gguf", template=CHATML_WITHOUT_SYSTEM)

    async def chat(engine: GgufEngine) -> tuple[Any, str, str]:
        return engine.template_digest, engine.settings["template_source"], await engine.render(SYSTEM)

    digest, source, text = runner.run(with_engine(GgufConfig(path, "m", slots=1, chat_template=CHATML), chat))
    assert (digest, source) == (ContentId.of_bytes(CHATML.encode()), "config")
    assert "be kind" in text


@pytest.mark.parametrize("absent", ["pre", "eos"])
def test_a_file_with_a_gap_starts_only_with_the_field_named(
    runner: asyncio.Runner, tmp_path: Path, absent: str
) -> None:
    path = write_tiny_gguf(tmp_path / "old.gguf", **{absent: None})
    with pytest.raises(ModelFileError, match=r"old\.gguf: tokenizer\.ggml"):
        runner.run(GgufEngine.start(GgufConfig(path, "m")))

    async def use(engine: GgufEngine) -> Any:
        ids = await engine.encode("a 12345 b", special=False)
        return ids, await serve(engine, PROMPT, 3, logit_bias=[[IM_END, 1000 * MILLION]])

    ids, served = runner.run(with_engine(GgufConfig(path, "m", slots=1, tokenizer_pre="smollm", eos_id=IM_END), use))
    assert served.tokens == (IM_END,)
    whole = write_tiny_gguf(tmp_path / "whole.gguf")
    assert runner.run(with_engine(GgufConfig(whole, "m", slots=1), use))[0] == ids


def test_settings_that_change_bits_in_company_run_one_at_a_time(runner: asyncio.Runner, tiny: Path) -> None:
    # half-width keys and values take another attention kernel in chunks of 64 and more
    async def use(engine: GgufEngine) -> Any:
        served = await asyncio.gather(*(serve(engine, OTHER * 3, 20) for _ in range(2)))
        return engine.self_check, engine.slots, engine.deterministic(request_for(PROMPT, 1)), served

    check, slots, deterministic, served = runner.run(with_engine(GgufConfig(tiny, "m", kv_type="f16"), use))
    assert check.results["step"] is not None
    assert "serves run one at a time, where they repeat" in check.reason
    assert (slots, deterministic) == (1, True)
    assert served[0] == served[1]


def test_serving_together_regardless_claims_nothing(runner: asyncio.Runner, tiny: Path) -> None:
    async def use(engine: GgufEngine) -> Any:
        return engine.self_check, engine.slots, engine.deterministic(request_for(PROMPT, 1))

    config = GgufConfig(tiny, "m", kv_type="f16", together_always=True)
    check, slots, deterministic = runner.run(with_engine(config, use))
    assert (slots, deterministic) == (2, False)
    assert "not claimed to repeat" in check.reason


def test_half_width_weights_run_one_at_a_time(runner: asyncio.Runner, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "f16.gguf", quant="f16")

    async def use(engine: GgufEngine) -> Any:
        return engine.slots, engine.fidelity, engine.precision

    assert runner.run(with_engine(GgufConfig(path, "m"), use)) == (1, Fidelity.F0, "F16")


def test_a_closed_engine_serves_nothing(runner: asyncio.Runner, tiny: Path) -> None:
    async def use(engine: GgufEngine) -> None:
        await engine.close()
        assert engine.pid is None
        for attempt in (engine.ready(), engine.encode("a", special=False), serve(engine, PROMPT, 1)):
            with pytest.raises(EngineUnavailable, match="closed"):
                await attempt

    runner.run(with_engine(GgufConfig(tiny, "m", slots=1), use))
