"""Typed decisions on GGUF: options scored side by side over one prompt, held to what each id scores in an answer."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from mesh.engine.gguf import GgufEngine
from mesh.engine.gguf_described import GgufConfig
from mesh.engine.gguf_frames import pack_logprobs, unpack_logprobs
from mesh.engine.gguf_running import Running
from mesh.engine.protocol import Decider
from mesh.engine.reference import ReferenceEngine
from mesh.engine.vllm import VllmTextEngine
from mesh.errors import EngineFailed, EngineUnavailable
from tests.support.decisions import decide, decision_request, known
from tests.support.serves import Sink, request_for, serve
from tests.support.tiny_gguf import END_OF_TEXT, FIRST_BYTE_TOKEN, IM_END


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_TOKEN + byte for byte in text.encode()]


ENDS = (END_OF_TEXT, IM_END)
PROMPT = ids("Is rain wet? Answer in one word:" * 3)  # longer than one batch of the prompt
OPTIONS = [ids("yes"), ids("no"), ids("yes, it is so"), ids("n")]


@pytest.mark.parametrize("ending", [True, False])
def test_an_option_scores_what_its_ids_score_one_by_one(
    runner: asyncio.Runner, engine: GgufEngine, ending: bool
) -> None:
    assert isinstance(engine, Decider)
    served = runner.run(decide(engine, PROMPT, OPTIONS, ignore_eos=not ending))
    assert served.decided is not None
    told = [runner.run(known(engine, PROMPT, option, ends=ENDS if ending else ())) for option in OPTIONS]
    assert served.decided == pytest.approx(told, abs=2e-3)
    outcome = served.outcome
    assert outcome.decision == max(range(len(told)), key=told.__getitem__)
    payload = len(PROMPT) + sum(map(len, OPTIONS))
    assert (outcome.finish, served.tokens, outcome.tokens_in, outcome.tokens_out) == ("stop", (), payload, 0)


def test_an_option_that_begins_like_another_is_likelier_only_where_the_answer_may_go_on(
    runner: asyncio.Runner, engine: GgufEngine
) -> None:
    options = [ids("no"), ids("n")]
    going_on = runner.run(decide(engine, PROMPT, options, ignore_eos=True))
    assert going_on.decided is not None
    assert going_on.decided[1] > going_on.decided[0]
    assert going_on.outcome.decision == 1


def test_the_order_and_the_company_of_options_change_nothing_that_counts(
    runner: asyncio.Runner, engine: GgufEngine
) -> None:
    alone = [runner.run(decide(engine, PROMPT, [option, OPTIONS[0]])).decided for option in OPTIONS[1:]]
    all_of_them = runner.run(decide(engine, PROMPT, OPTIONS)).decided
    backwards = runner.run(decide(engine, PROMPT, OPTIONS[::-1])).decided
    assert all_of_them is not None
    assert backwards is not None
    assert backwards[::-1] == pytest.approx(all_of_them, abs=2e-3)
    assert [one[0] for one in alone if one is not None] == pytest.approx(all_of_them[1:], abs=2e-3)


def test_the_first_of_two_that_are_equal_is_chosen() -> None:
    async def main() -> None:
        running = Running(Sink(), 10, asyncio.get_running_loop().create_future(), 3)
        running.decide((-2.0, -1.0, -1.0))
        assert await running.done == "stop"
        assert running.served("stop", 5, ReferenceEngine()).outcome.decision == 1

    asyncio.run(main())


def test_decisions_and_answers_go_side_by_side(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def main() -> None:
        answer = await serve(engine, PROMPT, 40, ignore_eos=True)
        decision = await decide(engine, PROMPT, OPTIONS)
        together = await asyncio.gather(
            serve(engine, PROMPT, 40, ignore_eos=True),
            decide(engine, PROMPT, OPTIONS),
            decide(engine, PROMPT, OPTIONS),
            serve(engine, PROMPT, 40, ignore_eos=True),
        )
        assert together == [answer, decision, decision, answer]

    runner.run(main())


def test_many_options_share_one_context(runner: asyncio.Runner, engine: GgufEngine) -> None:
    options = [ids(f"number {i}") for i in range(64)]
    served = runner.run(decide(engine, PROMPT, options))
    assert served.decided is not None
    assert len(set(served.decided)) == 64
    assert served.decided[63] == pytest.approx(runner.run(known(engine, PROMPT, options[63], ends=ENDS)), abs=2e-3)


def test_a_decision_that_nobody_wants_stops(runner: asyncio.Runner, engine: GgufEngine) -> None:
    async def main() -> None:
        long = ids("a long prompt, " * 120)
        sink = Sink()
        asked = asyncio.ensure_future(engine.decide(decision_request(long, OPTIONS), long, OPTIONS, sink))
        behind = asyncio.ensure_future(engine.decide(decision_request(long, OPTIONS), long, OPTIONS, sink))
        await asyncio.sleep(0)
        sink.cancelled.set()
        for one in (await asked, await behind):
            assert (one.outcome.finish, one.outcome.decision, one.decided) == ("cancelled", None, None)
        again = await engine.decide(decision_request(long, OPTIONS), long, OPTIONS, sink)
        assert again.outcome.finish == "cancelled"
        assert (await decide(engine, PROMPT, OPTIONS)).outcome.finish == "stop"

    runner.run(main())


def test_what_is_no_decision_is_refused(runner: asyncio.Runner, engine: GgufEngine) -> None:
    room = engine.context_tokens
    with pytest.raises(EngineFailed, match=r"the context holds"):
        runner.run(decide(engine, ids("a" * (room - 5)), OPTIONS))
    with pytest.raises(EngineFailed, match="none of them empty"):
        runner.run(decide(engine, PROMPT, [[], [5]]))
    with pytest.raises(EngineFailed, match="outside the vocabulary"):
        runner.run(decide(engine, PROMPT, [[5], [10**6]]))
    with pytest.raises(EngineFailed, match="a decision is asked for by its options"):
        runner.run(engine.serve(decision_request(PROMPT, []), PROMPT, Sink()))
    with pytest.raises(EngineFailed, match="an answer has none"):
        runner.run(engine.decide(request_for([*PROMPT, 5, 6], 1), PROMPT, [[5], [6]], Sink()))
    assert not engine.deterministic(decision_request(PROMPT, OPTIONS))


def test_engines_without_decisions_have_none() -> None:
    assert not isinstance(ReferenceEngine(), Decider)
    assert not issubclass(VllmTextEngine, Decider)


def test_a_decision_of_a_child_that_dies_fails(tiny: Path) -> None:
    async def main() -> None:
        engine = await GgufEngine.start(GgufConfig(tiny, "tiny"))
        try:
            long = ids("a long prompt, " * 120)
            asked = asyncio.ensure_future(engine.decide(decision_request(long, OPTIONS), long, OPTIONS, Sink()))
            await asyncio.sleep(0)
            await engine.close()
            with pytest.raises(EngineFailed):
                await asked
            with pytest.raises(EngineUnavailable):
                await decide(engine, PROMPT, OPTIONS)
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "data", [b"", b"1234567", pack_logprobs([math.nan]), pack_logprobs([-1.0, 0.5]), pack_logprobs([math.inf])]
)
def test_what_are_no_log_probabilities_is_noticed(data: bytes) -> None:
    with pytest.raises(EngineFailed, match=r"decided\.logprobs"):
        unpack_logprobs(data)


def test_log_probabilities_cross_the_pipe_exactly() -> None:
    sums = (-0.1, -math.inf, 0.0, -1e-300)
    assert unpack_logprobs(pack_logprobs(sums)) == sums

    async def main() -> None:
        running = Running(Sink(), 10, asyncio.get_running_loop().create_future(), 2)
        with pytest.raises(EngineFailed, match="3 log-probabilities for 2 options"):
            running.decide((-1.0, -2.0, -3.0))

    asyncio.run(main())
