"""A vLLM engine on a server that does as it should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import TextEngine
from mesh.engine.vllm import VllmEngine, VllmTextEngine
from mesh.errors import (
    BadRequest,
    EngineFailed,
    EngineUnavailable,
)
from mesh.identity.weights import folder_weights
from mesh.schema.outcome import Fidelity
from mesh.schema.request import MILLION
from tests.support.fake_vllm import FakeVllm, running
from tests.support.serves import Sink, request_for, serve
from tests.support.vllm_engines import engine_on, on
from tests.support.vllm_folder import EOS, encode, piece, write_model_folder

PROMPT = tuple(encode("tell me"))
LONG = tuple(encode("once upon a time there was a small server " * 2))
SEEDED: dict[str, Any] = {"temperature_u": 800_000, "seed": 7}


async def started(fake: FakeVllm, folder: Path, **config: Any) -> VllmEngine:
    """One that is closed already, for what it says of itself."""
    async with engine_on(fake, folder, **config) as engine:
        return engine


# --- serving


def test_a_serve_gives_what_the_server_made(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        first = await serve(engine, PROMPT, 12, ignore_eos=True)
        assert len(first.tokens) == 12
        told = first.outcome
        assert (told.finish, told.counted_by, told.tokens_in, told.tokens_out) == ("length", "engine", len(PROMPT), 12)
        assert (told.precision, told.weights_digest) == ("float32", engine.weights_digest)
        assert told.cache_hit_tokens is None
        assert first.margins is None
        assert (await serve(engine, PROMPT, 12, ignore_eos=True)).tokens == first.tokens
        drawn = await serve(engine, PROMPT, 12, ignore_eos=True, **SEEDED)
        assert drawn.tokens != first.tokens
        assert (await serve(engine, PROMPT, 12, ignore_eos=True, **SEEDED)).tokens == drawn.tokens
        assert (await serve(engine, PROMPT, 12, ignore_eos=True, **SEEDED | {"seed": 8})).tokens != drawn.tokens

    on(tmp_path, test)


@pytest.mark.parametrize("per_event", [1, 3, 100])
def test_ids_are_the_same_however_many_come_at_once(tmp_path: Path, per_event: int) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.per_event = 1
        one = await serve(engine, PROMPT, 10, ignore_eos=True)
        fake.per_event = per_event
        assert (await serve(engine, PROMPT, 10, ignore_eos=True)).tokens == one.tokens

    on(tmp_path, test)


def test_the_end_of_text_ends_a_serve_and_is_one_of_its_ids(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        told = await serve(engine, PROMPT, 9, logit_bias=[[EOS, 100 * MILLION]])
        assert (told.tokens, told.outcome.finish) == ((EOS,), "stop")
        ignored = await serve(engine, PROMPT, 3, logit_bias=[[EOS, 100 * MILLION]], ignore_eos=True)
        assert (ignored.tokens, ignored.outcome.finish) == ((EOS,) * 3, "length")

    on(tmp_path, test)


def test_stop_strings_and_stop_ids_end_a_serve(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        whole = (await serve(engine, PROMPT, 16, ignore_eos=True)).tokens
        spelled = b"".join(map(piece, whole)).decode()
        for told in (
            await serve(engine, PROMPT, 16, ignore_eos=True, stop=[spelled[3:5]]),
            await serve(engine, PROMPT, 16, ignore_eos=True, stop_ids=[whole[4]]),
        ):
            assert told.outcome.finish == "stop"
            assert told.tokens == whole[: len(told.tokens)]
            assert len(told.tokens) <= 5

    on(tmp_path, test)


def test_a_stop_string_that_the_server_ignores_still_ends_the_serve(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        whole = (await serve(engine, PROMPT, 16, ignore_eos=True)).tokens
        fake.ignored, fake.hold_at = frozenset({"stop"}), 12
        spelled = b"".join(map(piece, whole)).decode()
        told = await serve(engine, PROMPT, 16, ignore_eos=True, stop=[spelled[3:5]])
        assert (told.outcome.finish, told.outcome.tokens_out) == ("stop", None)  # nobody waited for the server's count
        assert len(told.tokens) <= 5
        await fake.until(lambda: fake.aborted == 1)

    on(tmp_path, test)


@pytest.mark.parametrize("streaming", [1, 4])
def test_a_client_that_leaves_stops_the_server(tmp_path: Path, streaming: int) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.hold_at, fake.per_event = 8, streaming
        sink = Sink(cancel_after=4)
        told = await serve(engine, PROMPT, 16, sink, ignore_eos=True)
        assert told.outcome.finish == "cancelled"
        assert 4 <= len(told.tokens) <= 8
        assert (told.outcome.tokens_out, told.outcome.tokens_accepted) == (None, len(told.tokens))
        await fake.until(lambda: fake.aborted == 1)
        assert fake.in_flight == 0
        assert len(fake.bodies[-1]["prompt"]) == len(PROMPT)

    on(tmp_path, test)


def test_a_client_that_has_left_already_costs_the_server_nothing(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        sink, asked = Sink(), len(fake.bodies)
        sink.cancelled.set()
        told = await serve(engine, PROMPT, 16, sink)
        assert (told.tokens, told.outcome.finish) == ((), "cancelled")
        assert len(fake.bodies) == asked

    on(tmp_path, test)


def test_a_serve_that_is_itself_cancelled_stops_the_server(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fake.hold_at = 2
        serving = asyncio.create_task(serve(engine, PROMPT, 16, ignore_eos=True))
        await fake.held.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await fake.until(lambda: fake.aborted == 1)

    on(tmp_path, test)


def test_a_sink_that_fails_ends_the_serve(tmp_path: Path) -> None:
    class Broken(Sink):
        def put(self, token: int) -> None:
            raise RuntimeError("full")

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        with pytest.raises(EngineFailed, match="the sink failed: RuntimeError"):
            await serve(engine, PROMPT, 4, Broken())

    on(tmp_path, test)


def test_serves_at_once_are_as_serves_alone(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        prompts = [encode(f"prompt {n}") for n in range(8)]
        alone = [(await serve(engine, prompt, 12, ignore_eos=True)).tokens for prompt in prompts]
        together = await asyncio.gather(*(serve(engine, prompt, 12, ignore_eos=True) for prompt in prompts))
        assert [told.tokens for told in together] == alone
        assert fake.in_flight == 0

    on(tmp_path, test, {"slots": 8})


def test_margins_come_where_they_were_asked_for_and_mean_something(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        told = await serve(engine, PROMPT, 6, ignore_eos=True)
        assert told.margins is not None
        assert len(told.margins) == 6
        assert all(margin > 0 for margin in told.margins)
        assert (await serve(engine, PROMPT, 6, **SEEDED)).margins is not None
        for bent in ({"logit_bias": [[5, 1]]}, {"frequency_penalty_u": 1}, {"repetition_penalty_u": 999_999}):
            assert (await serve(engine, PROMPT, 6, **bent)).margins is None

    on(tmp_path, test, {"margins": True})


@pytest.mark.parametrize("cached", [False, True])
def test_cached_prompt_tokens_are_told_when_there_are_none_and_when_there_are(tmp_path: Path, cached: bool) -> None:
    """VL-02: a counted 0 is there, and one that nobody counted is not."""

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        hits = [(await serve(engine, LONG, 2, ignore_eos=True)).outcome.cache_hit_tokens for _ in range(2)]
        assert hits == ([0, 80] if cached else [None, None])
        assert len(LONG) == 84  # five whole blocks and a rest, which is computed whatever happens

    on(tmp_path, test, counts_cached=cached)


def test_the_models_own_sampling_defaults_decide_nothing(tmp_path: Path) -> None:
    """VL-06, with a server that would take its folder's defaults for whatever is not sent."""
    spoilt = {"temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05, "min_tokens": 4}

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        fair = [await serve(engine, PROMPT, 12, ignore_eos=True, **extra) for extra in ({}, SEEDED)]
        probe = engine.self_check.probe
        await fake.restart(defaults=spoilt)
        await engine.ready()
        assert engine.self_check.probe == probe
        assert [await serve(engine, PROMPT, 12, ignore_eos=True, **extra) for extra in ({}, SEEDED)] == fair
        assert all(spoilt.keys() - {"min_tokens"} <= body.keys() for body in fake.bodies)

    on(tmp_path, test)


def test_what_is_refused_is_not_sent(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        asked = len(fake.bodies)
        for refused in ({"temperature_u": 1}, {"stop_ids": [259]}, {"logit_bias": [[3, 101 * MILLION]]}):
            told = engine.refusal(request_for(PROMPT, 4, **refused))
            assert told is not None
            with pytest.raises(EngineFailed) as caught:
                await serve(engine, PROMPT, 4, **refused)
            assert told in str(caught.value)
        with pytest.raises(EngineFailed, match="2 prompt ids, the request says"):
            await engine.serve(request_for(PROMPT, 4), PROMPT[:2], Sink())
        assert (engine.refusal(request_for(PROMPT, 2048)) or "").startswith("max_tokens")
        assert len(fake.bodies) == asked

    on(tmp_path, test)


# --- what it says of itself


def test_an_engine_says_what_its_server_and_its_folder_are(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert isinstance(engine, TextEngine)
        assert engine.backend_id == "vllm/0.32.0/none/none/told:cpu/none"
        assert (engine.recipe_id, engine.context_tokens, engine.slots, engine.pid) == ("tiny", 2048, 2, None)
        assert engine.weights_digest == folder_weights(tmp_path / "model").digest
        assert (engine.fidelity, engine.precision) == (Fidelity.F3, "float32")
        assert engine.settings["dtype"] == "told:float32"
        assert engine.settings["quantization"] == "none"
        assert engine.settings["block_size"] == "16"
        assert len(engine.settings["probe"]) == 32
        assert engine.deterministic(request_for(PROMPT, 4))
        assert len(engine.process) == 16

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("told", "fidelity", "precision"),
    [({"requantized": True}, Fidelity.F0, None), ({"fidelity": Fidelity.F0}, Fidelity.F0, "float32")],
    ids=["requantized", "operator-says-unrated"],
)
def test_no_more_is_rated_than_is_known(
    tmp_path: Path, told: dict[str, Any], fidelity: Fidelity, precision: str | None
) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert (engine.fidelity, engine.precision) == (fidelity, precision)

    on(tmp_path, test, told)


def test_two_servers_that_are_alike_have_the_same_settings(tmp_path: Path) -> None:
    async def main() -> None:
        model = write_model_folder(tmp_path / "model")
        async with running() as one, running(fingerprint="vllm-0.32.0-ffffffff", root="copy", name="renamed") as two:
            here, there = await started(one, model), await started(two, model, recipe_id="tiny")
        assert here.settings == there.settings
        assert here.weights_digest == there.weights_digest
        assert (here.recipe_id, here.process != there.process) == ("tiny", True)
        for other in ({"numbers": "bfloat16"}, {"context": 1024}, {"cache_dtype": "fp8"}):
            async with running(**other) as fake:
                assert (await started(fake, model)).settings != here.settings

    asyncio.run(main())


def test_without_a_folder_an_engine_takes_ids_alone() -> None:
    async def main() -> None:
        async with running() as fake, engine_on(fake) as engine:
            assert not isinstance(engine, TextEngine)
            assert (engine.weights_digest, engine.fidelity) == (None, Fidelity.F0)
            assert len((await serve(engine, PROMPT, 5, ignore_eos=True)).tokens) == 5
            assert (engine.refusal(request_for(PROMPT, 4, stop=["x"])) or "").startswith("stop: ")

    asyncio.run(main())


def test_the_text_side_is_the_servers_and_the_folders(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        chat = [{"role": "user", "content": "how far?"}]
        text = await engine.render(chat)
        assert text == "user: how far?\nassistant:"
        assert await engine.encode(text, special=True) == encode(text)
        assert b"".join(map(engine.piece, await engine.encode("l'été 東京", special=False))).decode() == "l'été 東京"
        assert engine.piece(EOS) == b""
        for unknown in (-1, 259):
            with pytest.raises(BadRequest, match=r"the vocabulary has ids 0\.\.258"):
                engine.piece(unknown)
        with pytest.raises(BadRequest, match="empty"):
            await engine.render([])

    on(tmp_path, test)


def test_a_folder_without_a_template_takes_prompts_and_no_chats(tmp_path: Path) -> None:
    async def main() -> None:
        model = write_model_folder(tmp_path / "model")
        (model / "chat_template.jinja").unlink()
        async with running() as fake, engine_on(fake, model) as engine:
            assert isinstance(engine, VllmTextEngine)
            assert engine.template_digest is None
            assert await engine.encode("hi", special=False) == encode("hi")
            with pytest.raises(BadRequest) as caught:
                await engine.render([{"role": "user", "content": "hi"}])
            assert caught.value.code == "no_chat_template"

    asyncio.run(main())


def test_a_key_goes_with_everything(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert len((await serve(engine, PROMPT, 5, ignore_eos=True)).tokens) == 5

    on(tmp_path, test, {"key": "k"}, key="k")


def test_an_engine_that_is_closed_says_so(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        await engine.close()
        for use in (engine.ready(), serve(engine, PROMPT, 2), engine.encode("x", special=True)):
            with pytest.raises(EngineUnavailable, match="closed"):
                await use

    on(tmp_path, test)


# --- numbers that depend on more than the request


@pytest.mark.parametrize(
    ("fault", "words"),
    [("crowd", "together (position 23)"), ("warm", "warm (position 23)")],
)
def test_a_server_whose_numbers_move_claims_nothing_and_serves(tmp_path: Path, fault: str, words: str) -> None:
    """VL-01 a and VL-02."""

    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert not engine.deterministic(request_for(PROMPT, 4))
        assert engine.self_check.known is not None
        assert words in engine.self_check.reason
        assert len((await serve(engine, PROMPT, 6, ignore_eos=True)).tokens) == 6

    on(tmp_path, test, {"slots": 4}, **{fault: True})


def test_numbers_that_nobody_vouched_for_are_no_claim(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert engine.self_check.identical
        assert not engine.deterministic(request_for(PROMPT, 4))

    on(tmp_path, test, {"dtype": "bfloat16"})
    on(tmp_path / "b", test, {"device": "cuda"})
    on(tmp_path / "c", test, version="0.33.0")


def test_grammar_is_served_once_its_text_is_known(tmp_path: Path) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        unknown = request_for(PROMPT, 4, grammar=bytes(32))
        assert "not told" in (engine.refusal(unknown) or "")
        digest = engine.learn('root ::= "a"')
        assert engine.refusal(request_for(PROMPT, 4, grammar=digest)) is None
        assert "ignore_eos" in (engine.refusal(request_for(PROMPT, 4, grammar=digest, ignore_eos=True)) or "")
        served = await serve(engine, PROMPT, 4, grammar=digest, ignore_eos=False)
        assert served.margins is None

    on(tmp_path, test, {"margins": True})
