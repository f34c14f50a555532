"""Processes looked at every so often, until there is a reason to end them or nobody wants to know any more."""

from __future__ import annotations

import asyncio

import pytest

from mesh.engine import excess
from mesh.engine.excess import ExcessWatch


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excess, "LOOK_S", 0.001)


def test_the_reason_is_told_once() -> None:
    asked: list[int] = []
    told: list[str] = []

    def why(pid: int) -> str | None:
        asked.append(pid)
        return "too much" if len(asked) >= 3 else None

    async def main() -> None:
        ended = asyncio.Event()
        watch = ExcessWatch(why, lambda said: (told.append(said), ended.set())[0])
        watch.start(7)
        await ended.wait()
        watch.stop()

    asyncio.run(main())
    assert (asked, told) == ([7, 7, 7], ["too much"])


def test_nothing_is_told_after_it_was_stopped() -> None:
    told: list[str] = []

    async def main() -> None:
        watch = ExcessWatch(lambda _: "too much", told.append)
        watch.start(7)
        watch.stop()
        watch.stop()
        nobody = ExcessWatch(None, told.append)
        nobody.start(7)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())
    assert told == []
