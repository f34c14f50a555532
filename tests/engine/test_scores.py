"""Log-probabilities of ids: from a GGUF model's own logits, from what a vLLM server says, and only where wanted."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_model import scores_of
from mesh.engine.protocol import ScoringEngine
from mesh.engine.reference import ReferenceEngine
from mesh.engine.vllm import VllmTextEngine
from mesh.errors import EngineFailed
from tests.support.fake_vllm import FakeVllm
from tests.support.serves import ScoreSink, serve
from tests.support.tiny_gguf import FIRST_BYTE_TOKEN
from tests.support.vllm_engines import on
from tests.support.vllm_folder import encode

PROMPT = [FIRST_BYTE_TOKEN + byte for byte in b"Once upon a time"]


def test_scores_are_log_probabilities_ties_by_id() -> None:
    row = np.log(np.array([1, 4, 2, 4, 5], np.float32))
    scores = scores_of(row, 2, 3)
    assert [token for token, _ in scores.best] == [4, 1, 3]
    assert scores.chosen == pytest.approx(math.log(2 / 16))
    assert [value for _, value in scores.best] == pytest.approx([math.log(5 / 16), math.log(4 / 16), math.log(4 / 16)])
    assert scores_of(row, 0, 0).best == ()
    assert len(scores_of(row, 0, 20).best) == 5


def test_gguf_scores_fit_ids_and_margins_and_change_nothing(runner: asyncio.Runner, engine: GgufEngine) -> None:
    assert isinstance(engine, ScoringEngine)
    plain = runner.run(serve(engine, PROMPT, 30, ignore_eos=True))
    sink = ScoreSink(5)
    scored = runner.run(serve(engine, PROMPT, 30, sink, ignore_eos=True))
    assert scored == plain
    assert scored.margins is not None
    for token, scores, margin in zip(scored.tokens, sink.scores, scored.margins, strict=True):
        assert scores is not None
        assert scores.best[0] == (token, scores.chosen)
        assert scores.best[0][1] - scores.best[1][1] == pytest.approx(margin, abs=1e-4)
        assert [value for _, value in scores.best] == sorted((value for _, value in scores.best), reverse=True)


def test_gguf_scores_are_raw_whatever_is_sampled(runner: asyncio.Runner, engine: GgufEngine) -> None:
    free, bent = ScoreSink(2), ScoreSink(2)
    runner.run(serve(engine, PROMPT, 1, free))
    token = runner.run(serve(engine, PROMPT, 1, bent, temperature_u=500_000, seed=3, logit_bias=[[7, 10**9]])).tokens
    assert token == (7,)
    assert free.scores[0] is not None
    assert bent.scores[0] is not None
    assert bent.scores[0].best == free.scores[0].best
    assert bent.scores[0].chosen < free.scores[0].chosen


@pytest.mark.parametrize("margins", [False, True])
def test_vllm_scores_are_what_the_server_says(tmp_path: Path, margins: bool) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        assert isinstance(engine, ScoringEngine)
        prompt = tuple(encode("tell me"))
        plain = await serve(engine, prompt, 12, ignore_eos=True)
        fake.per_event = 5
        for wanted in (0, 1, 2):
            sink = ScoreSink(wanted)
            scored = await serve(engine, prompt, 12, sink, ignore_eos=True)
            assert scored.tokens == plain.tokens
            assert len(sink.scores) == 12
            for token, scores in zip(scored.tokens, sink.scores, strict=True):
                assert scores is not None
                assert len(scores.best) == wanted
                assert wanted == 0 or scores.best[0] == (token, scores.chosen)

    on(tmp_path, test, {"margins": margins})


def test_vllm_that_leaves_them_out_breaks_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fake: FakeVllm, engine: VllmTextEngine) -> None:
        monkeypatch.setattr("tests.support.fake_completion.Completion._logprobs_of", lambda *args: None)
        with pytest.raises(EngineFailed, match="no log-probabilities although"):
            await serve(engine, tuple(encode("tell me")), 12, ScoreSink(2))

    on(tmp_path, test)


def test_reference_engine_has_none() -> None:
    assert not isinstance(ReferenceEngine(), ScoringEngine)
