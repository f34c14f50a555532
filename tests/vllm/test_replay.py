"""Serves on a real server, replayed on it after a restart, and on one that computes otherwise; and an engine that was
there before: a server that is restarted, replaced or reconfigured under it is noticed before the next serve."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.protocol import CheckResult, can_check
from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.errors import EngineUnavailable, WeightsChanged
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.replay import replayer
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.support.stewards import KEY, Client, request, running
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.asking import disclosed
from tests.vllm.servers import RealServer

AT_ONCE, TOKENS = 8, 24
CHECKED = 224  # serves whose output one pass can decide, but for a choice between two ids that are nearly equal
BY_PREFILL = 200  # of those, at least
TRUST = {KEY.public}
PROMPT = (104, 105)
GREEDY: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0, "stop": ["q", "Z"]})
SAMPLINGS: tuple[dict[str, Any], ...] = (
    GREEDY[0],
    {"temperature": 0.8, "seed": 5},
    GREEDY[1],
    {"temperature": 0, "frequency_penalty": 0.5, "stop": ["q", "Z"]},
    GREEDY[0],
    {"temperature": 1.3, "seed": 11, "top_p": 0.9, "top_k": 40, "logit_bias": {"40": 3}},
    GREEDY[1],
)
COUNT = CHECKED // 4 * len(SAMPLINGS)


@dataclass(frozen=True)
class Sealed:
    envelope: bytes
    disclosure: Disclosure
    greedy: bool


def config(server: RealServer, model: Path, **changes: Any) -> VllmConfig:
    told: dict[str, Any] = {"weights": model, "dtype": "float32", "device": "cpu", "slots": AT_ONCE}
    return VllmConfig(server.url, **{**told, **changes})


@dataclass(frozen=True)
class Before:
    """What was there before the server was started again: an engine, which looks on, and what it served."""

    engine: VllmEngine
    process: bytes
    settings: dict[str, Any]
    first: tuple[int, ...]
    sealed: list[Sealed]


async def ids(engine: VllmEngine) -> tuple[int, ...]:
    await engine.ready()
    return (await engine.serve(request(max_tokens=12), PROMPT, Client())).tokens


async def serve_all(engine: VllmEngine, folder: Path, count: int = COUNT) -> list[Sealed]:
    """`count` chats, `AT_ONCE` at a time, each other four streamed. The longest fill a block of a CPU's prefix cache,
    128 ids, so that some serves are warm."""
    async with running(folder) as steward:
        gateway = Gateway(steward, [engine], GatewayConfig())
        port = await gateway.start("127.0.0.1", 0)
        numbers, sealed = iter(range(count)), []

        async def caller() -> None:
            for number in numbers:
                sampling = SAMPLINGS[number % len(SAMPLINGS)]
                said = f"tell me about {'the ' * (number % 10 * 16)}number {number}"
                disclosure = await disclosed(
                    port, engine.recipe_id, said, stream=number % 8 >= 4, max_tokens=TOKENS, **sampling
                )
                entry = steward.reader.by_serve(disclosure.serve_id)
                assert entry is not None
                sealed.append(Sealed(entry.envelope, disclosure, sampling in GREEDY))

        try:
            await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        finally:
            await gateway.stop()
    return sealed


@pytest.fixture(scope="module")
def before(
    runner: asyncio.Runner, server: RealServer, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Before]:
    """The server was started again since."""

    async def main() -> Before:
        engine = await VllmEngine.start(config(server, model))
        try:
            assert engine.self_check.deterministic, engine.self_check.reason
            made = await serve_all(engine, tmp_path_factory.mktemp("served"))
            return Before(engine, engine.process, dict(engine.settings), await ids(engine), made)
        except BaseException:
            await engine.close()
            raise

    server.be(model)
    was = runner.run(main())
    server.restart()
    yield was
    runner.run(was.engine.close())


def disclosures(sealed: list[Sealed]) -> list[Disclosure]:
    return [one.disclosure for one in sealed]


async def replay_all(engine: VllmEngine, sealed: list[Sealed]) -> list[Verdict]:
    try:
        return [await replay(one.envelope, one.disclosure, engine, TRUST) for one in sealed]
    finally:
        await engine.close()


def test_every_serve_is_verified_after_a_restart(server: RealServer, model: Path, before: Before) -> None:
    server.be(model)
    receipts = [verify(one.envelope, RECEIPT_TYPE, TRUST).value for one in before.sealed]
    assert len(receipts) == COUNT
    assert all(receipt.engine.deterministic and receipt.outcome.counted_by == "both" for receipt in receipts)
    assert {receipt.outcome.finish for receipt in receipts} == {"length", "stop"}
    assert any(receipt.outcome.cache_hit_tokens for receipt in receipts)
    assert len({one.disclosure.output for one in before.sealed}) > COUNT / 2, "outputs that hardly vary prove little"

    async def main() -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, model)), before.sealed)

    verdicts = asyncio.run(main())
    told = Counter((verdict.kind, verdict.method, verdict.output, verdict.cache) for verdict in verdicts)
    passed = told.pop(("verified", "prefill", "matches", "cold"))
    assert BY_PREFILL <= passed <= CHECKED
    assert told == {("verified", "decode", "matches", "cold"): COUNT - passed}


def test_a_restart_is_another_process_of_the_same_engine(
    runner: asyncio.Runner, server: RealServer, model: Path, before: Before
) -> None:
    server.be(model)
    assert runner.run(ids(before.engine)) == before.first
    assert before.engine.process != before.process
    assert before.engine.settings == before.settings
    assert before.settings["logprobs"] == "raw"


def test_other_dtype_is_another_setting_and_where_that_is_not_looked_at_other_ids(
    runner: asyncio.Runner, server: RealServer, model: Path, before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.be(model, dtype="bfloat16")
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="gives other numbers than before"):
            runner.run(before.engine.ready())
    greedy = list(itertools.islice((one for one in before.sealed if one.greedy), 24))

    async def main(*, told: str) -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, model, dtype=told, margins=True)), greedy)

    # what the operator tells is one thing that differs, and an axis of the recipe; what was measured the other: a lie
    # does not help
    for told, reason in (("bfloat16", "other-recipe"), ("float32", "other-settings")):
        verdicts = asyncio.run(main(told=told))
        assert {(v.kind, v.reason) for v in verdicts} == {("not-replayable", reason)}
        assert all(("dtype" if told == "bfloat16" else "probe") in (v.detail or "") for v in verdicts)

    monkeypatch.setattr(replayer, "first_other", lambda receipt, here: None)
    monkeypatch.setattr(VllmEngine, "deterministic", lambda self, request: True)
    verdicts = asyncio.run(main(told="bfloat16"))
    counted = Counter(verdict.kind for verdict in verdicts)
    assert counted["diverged"] > len(greedy) / 4
    for verdict in verdicts:
        if verdict.kind == "diverged":
            assert verdict.margin is not None
            assert verdict.margin > 0
        elif verdict.kind == "not-replayable":
            assert verdict.reason == "tie"


def test_in_bfloat16_honest_serves_claim_nothing_and_a_check_is_a_score(
    server: RealServer, model: Path, tmp_path: Path
) -> None:
    server.be(model, dtype="bfloat16")

    async def main() -> list[tuple[Verdict, CheckResult]]:
        engine = await VllmEngine.start(config(server, model, dtype="bfloat16"))
        assert can_check(engine)
        try:
            sealed = await serve_all(engine, tmp_path, 2 * len(SAMPLINGS))
            scores = [await engine.check(d.request, d.payload_ids, d.output_ids or ()) for d in disclosures(sealed)]
            return list(zip(await replay_all(engine, sealed), scores, strict=True))
        finally:
            await engine.close()

    results = asyncio.run(main())
    assert {(verdict.kind, verdict.reason) for verdict, _ in results} == {("not-replayable", "not-claimed")}
    assert all(result.kind == "undecided" or result.differences for _, result in results)


def test_another_model_and_a_folder_that_was_swapped_are_refused(
    runner: asyncio.Runner, server: RealServer, before: Before, tmp_path: Path
) -> None:
    server.stop()
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        runner.run(before.engine.ready())
    other = write_tiny_hf(tmp_path / "else", seed=1)
    server.be(other)
    with pytest.raises(EngineUnavailable, match=r"its root was .*tiny' and is .*else'"):
        runner.run(before.engine.ready())

    async def main() -> None:
        engine = await VllmEngine.start(config(server, other, slots=2))
        try:
            assert await ids(engine) != before.first
            weights = other / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
            with pytest.raises(WeightsChanged, match=r"model\.safetensors"):
                await engine.ready()
        finally:
            await engine.close()

    asyncio.run(main())


def test_sampling_defaults_in_the_model_folder_decide_nothing(
    server: RealServer, before: Before, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.5}
    other = write_tiny_hf(tmp_path / "tiny", defaults=defaults)
    server.be(other)
    monkeypatch.setattr(replayer, "first_other", lambda receipt, here: None)  # the folder's digest is another one

    async def main() -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, other)), before.sealed[:40])

    assert {verdict.kind for verdict in asyncio.run(main())} == {"verified"}
