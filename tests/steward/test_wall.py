"""EN-09: the wall time is only a label, and a step of it is noted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.engine.protocol import Served, TokenSink
from mesh.engine.reference import ReferenceEngine
from mesh.schema.request import ServeRequest
from mesh.steward.serves import SealedServe
from mesh.steward.wall import STEP_NS, WallClock
from tests.support.stewards import PROMPT, Client, request, running

S = 1_000_000_000


class Clocks:
    wall_ns = 1_800_000_000 * S
    steady_ns = 5 * S

    def wall(self) -> int:
        return self.wall_ns

    def steady(self) -> int:
        return self.steady_ns

    def run(self, ns: int) -> None:
        self.wall_ns += ns
        self.steady_ns += ns


@pytest.mark.parametrize(("by_s", "said"), [(-3600, "back by 3600.000 s"), (3600, "forward by 3600.000 s")])
def test_step_is_said_once(by_s: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = WallClock(clocks.wall, clocks.steady)
    clocks.run(100 * S)
    clocks.wall_ns += by_s * S
    assert clock() == clock() == clocks.wall_ns
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert said in caplog.text


def test_time_that_passes_and_small_corrections_are_no_steps(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = WallClock(clocks.wall, clocks.steady)
    for _ in range(3):
        clocks.run(86_400 * S)
        clocks.wall_ns += STEP_NS // 3
        clock()
    assert caplog.records == []
    clocks.wall_ns += STEP_NS // 3  # which together are one
    clock()
    assert len(caplog.records) == 1


def test_machine_s_own_clocks_agree(caplog: pytest.LogCaptureFixture) -> None:
    clock = WallClock()
    assert abs(clock() - time.time_ns()) < 60 * S
    assert caplog.records == []


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_step_within_a_serve_changes_no_figure(tmp_path: Path, by_s: int, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()

    class Stepped(ReferenceEngine):
        async def serve(self, request: ServeRequest, prompt: Sequence[int], sink: TokenSink) -> Served:
            clocks.wall_ns += by_s * S
            return await super().serve(request, prompt, sink)

    async def main() -> None:
        async with running(tmp_path, clock_ns=WallClock(clocks.wall, clocks.steady)) as steward:
            began_ns = time.monotonic_ns()
            admitted = await steward.admit(request(), [Stepped()], caller="a caller")
            serve = await steward.serve(admitted, PROMPT, Client(), serve_id=steward.new_serve_id())
            took_ns = time.monotonic_ns() - began_ns
            assert isinstance(serve, SealedServe)
            receipt = serve.receipt
            assert receipt.outcome.finish == "length"
            # a label: never before the beginning
            assert receipt.ended_ns - receipt.started_ns == max(0, by_s * S)
            assert receipt.energy.span_ns is not None
            assert 0 <= receipt.energy.span_ns <= took_ns

    asyncio.run(main())
    assert [record.levelname for record in caplog.records if record.name == "mesh.steward.wall"] == ["WARNING"]
