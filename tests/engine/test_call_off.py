"""The word that nobody wants more."""

from __future__ import annotations

import asyncio

from mesh.engine.call_off import CallOff


def test_what_hears_it_is_called_when_it_is_set_and_not_once_taken_away() -> None:
    heard: list[str] = []
    word = CallOff()
    word.heard = lambda: heard.append("first")
    word.heard = None
    word.set()
    assert (word.is_set(), heard) == (True, [])

    word = CallOff()
    word.heard = lambda: heard.append("second")
    word.set()
    assert heard == ["second"]


def test_a_task_may_wait_for_it_too() -> None:
    async def main() -> None:
        word = CallOff()
        waiting = asyncio.create_task(word.wait())
        await asyncio.sleep(0)
        word.set()
        assert await waiting

    asyncio.run(main())
