"""What a user meets first: the packaged SmolLM2, with the default settings and with others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.schema.outcome import Fidelity
from tests.support.decisions import decide, known
from tests.support.serves import serve

# The gateway on this model is tested with every change: tests/gateway/test_real_model.py.
pytestmark = [pytest.mark.deep, pytest.mark.real_model]

ASK = [{"role": "user", "content": "Say hello in French."}]
STORY = "Once upon a time there was a small"
SAMPLED = {"temperature_u": 800_000, "top_p_u": 900_000, "top_k": 40, "seed": 11}


@pytest.fixture(scope="module")
def real(runner: asyncio.Runner, smollm2: Path) -> Iterator[GgufEngine]:
    engine = runner.run(GgufEngine.start(GgufConfig(smollm2, "smollm2")))
    yield engine
    runner.run(engine.close())


def test_the_packaged_model_is_measured_to_give_the_same_bits(real: GgufEngine) -> None:
    assert real.self_check.reason == "self-check: bit-identical step, warm, together"
    assert (real.slots, real.fidelity, real.precision) == (2, Fidelity.F2, "Q4_1")


def test_two_streams_at_once_equal_each_alone(runner: asyncio.Runner, real: GgufEngine) -> None:
    async def prompts() -> tuple[list[int], list[int]]:
        return await real.encode(await real.render(ASK), special=True), await real.encode(STORY, special=False)

    async def together() -> list[Any]:
        return await asyncio.gather(serve(real, chat, 40), serve(real, story, 40, **SAMPLED))

    chat, story = runner.run(prompts())
    alone = [runner.run(serve(real, chat, 40)), runner.run(serve(real, story, 40, **SAMPLED))]
    assert runner.run(together()) == alone
    assert alone[0].outcome.finish == "stop"
    assert b"Bonjour" in b"".join(map(real.piece, alone[0].tokens))


def test_the_librarys_usual_settings_are_noticed_to_change_bits(runner: asyncio.Runner, smollm2: Path) -> None:
    async def check() -> Any:
        config = GgufConfig(smollm2, "smollm2", kv_type="f16", context_tokens=512)
        engine = await GgufEngine.start(config)
        await engine.close()
        return engine.self_check, engine.slots

    found, slots = runner.run(check())
    assert found.results["step"] is not None
    assert found.results["repeat"] is None
    assert slots == 1


@pytest.mark.parametrize(
    ("start", "words", "right"),
    [
        ("The capital of France is the city of", (" Berlin", " Paris", " London"), 1),
        ("Two plus two is equal to", (" four", " eleven thousand"), 0),
    ],
)
def test_it_decides_rightly(
    runner: asyncio.Runner, real: GgufEngine, start: str, words: tuple[str, ...], right: int
) -> None:
    prompt = runner.run(real.encode(start, special=False))
    options = [runner.run(real.encode(word, special=False, bare=True)) for word in words]
    served = runner.run(decide(real, prompt, options, ignore_eos=True))
    assert served.outcome.decision == right
    assert served.decided is not None
    assert served.decided[right] == pytest.approx(runner.run(known(real, prompt, options[right])), abs=0.05)
