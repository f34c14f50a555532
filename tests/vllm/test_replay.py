"""Serves on a real server, replayed on it after a restart, and on one that computes otherwise."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.vllm import VllmEngine
from mesh.engine.vllm_described import VllmConfig
from mesh.gateway.app import Gateway
from mesh.gateway.config import GatewayConfig
from mesh.replay import replayer
from mesh.replay.replayer import replay
from mesh.replay.verdict import Verdict
from mesh.schema.disclosure import Disclosure
from mesh.schema.envelope import RECEIPT_TYPE, verify
from tests.support.stewards import KEY, running
from tests.support.tiny_hf import write_tiny_hf
from tests.vllm.asking import disclosed
from tests.vllm.servers import RealServer

COUNT, AT_ONCE, TOKENS = 200, 8, 24
TRUST = {KEY.public}
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0, "frequency_penalty": 0.5, "stop": ["q", "Z"]},
    {"temperature": 1.3, "seed": 11, "top_p": 0.9, "top_k": 40, "logit_bias": {"40": 3}},
)


@dataclass(frozen=True)
class Sealed:
    envelope: bytes
    disclosure: Disclosure
    greedy: bool


def config(server: RealServer, model: Path, **changes: Any) -> VllmConfig:
    told: dict[str, Any] = {"weights": model, "dtype": "float32", "device": "cpu", "slots": AT_ONCE}
    return VllmConfig(server.url, **{**told, **changes})


async def serve_all(server: RealServer, model: Path, folder: Path) -> list[Sealed]:
    """`COUNT` chats, `AT_ONCE` at a time, each other one streamed."""
    engine = await VllmEngine.start(config(server, model))
    assert engine.self_check.deterministic, engine.self_check.reason
    async with running(folder) as steward:
        gateway = Gateway(steward, [engine], GatewayConfig())
        port = await gateway.start("127.0.0.1", 0)
        numbers, sealed = iter(range(COUNT)), []

        async def caller() -> None:
            for number in numbers:
                sampling = SAMPLINGS[number % len(SAMPLINGS)]
                said = f"tell me about {'the ' * (number % 30)}number {number}"
                disclosure = await disclosed(
                    port, server.name, said, stream=number % 8 >= 4, max_tokens=TOKENS, **sampling
                )
                entry = steward.reader.by_serve(disclosure.serve_id)
                assert entry is not None
                sealed.append(Sealed(entry.envelope, disclosure, sampling == SAMPLINGS[0]))

        try:
            await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        finally:
            await gateway.stop()
            await engine.close()
    return sealed


@pytest.fixture(scope="module")
def sealed(server: RealServer, model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Sealed]:
    made = asyncio.run(serve_all(server, model, tmp_path_factory.mktemp("served")))
    assert len(made) == COUNT
    server.stop()
    server.start(model)
    return made


async def replay_all(engine: VllmEngine, sealed: list[Sealed]) -> list[Verdict]:
    try:
        return [await replay(one.envelope, one.disclosure, engine, TRUST) for one in sealed]
    finally:
        await engine.close()


def test_every_serve_is_verified_after_a_restart(server: RealServer, model: Path, sealed: list[Sealed]) -> None:
    receipts = [verify(one.envelope, RECEIPT_TYPE, TRUST).value for one in sealed]
    assert all(receipt.engine.deterministic and receipt.outcome.counted_by == "both" for receipt in receipts)
    assert {receipt.outcome.finish for receipt in receipts} == {"length", "stop"}
    assert len({one.disclosure.output for one in sealed}) > COUNT / 2, "outputs that hardly vary prove little"

    async def main() -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, model)), sealed)

    verdicts = asyncio.run(main())
    told = Counter((verdict.kind, verdict.method, verdict.output) for verdict in verdicts)
    assert told == {("verified", "decode", "matches"): COUNT}


def test_other_dtype_is_another_setting_and_where_that_is_not_looked_at_other_ids(
    server: RealServer, model: Path, sealed: list[Sealed], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stop()
    server.start(model, dtype="bfloat16")
    greedy = list(itertools.islice((one for one in sealed if one.greedy), 24))

    async def main(*, told: str) -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, model, dtype=told, margins=True)), greedy)

    # what the operator tells is one thing that differs, what was measured the other: a lie does not help
    for told in ("bfloat16", "float32"):
        verdicts = asyncio.run(main(told=told))
        assert {(v.kind, v.reason) for v in verdicts} == {("not-replayable", "other-settings")}
        assert all("probe" in (v.detail or "") for v in verdicts)

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


def test_sampling_defaults_in_the_model_folder_decide_nothing(
    server: RealServer, sealed: list[Sealed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.5}
    other = write_tiny_hf(tmp_path / "tiny", defaults=defaults)
    server.stop()
    server.start(other)
    monkeypatch.setattr(replayer, "first_other", lambda receipt, here: None)  # the folder's digest is another one

    async def main() -> list[Verdict]:
        return await replay_all(await VllmEngine.start(config(server, other)), sealed[:40])

    assert {verdict.kind for verdict in asyncio.run(main())} == {"verified"}
