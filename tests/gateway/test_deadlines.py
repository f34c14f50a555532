"""One timer for all serves: each is told in its own time, and none that is over."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from mesh.gateway.choices import Serve
from mesh.gateway.deadlines import Deadlines


class Late:
    """A serve as far as its deadline goes. It is told so many times more, at once."""

    def __init__(self, deadline: float, told: list[Late], again: int = 0) -> None:
        self.deadline, self.told, self.again = deadline, told, again

    def late(self) -> float | None:
        self.told.append(self)
        self.again -= 1
        return 0 if self.again >= 0 else None


def serves(*late: Late) -> list[Serve]:
    return [cast(Any, one) for one in late]


async def told_all(told: list[Late], count: int) -> None:
    while len(told) < count:
        await asyncio.sleep(0)


def test_serves_are_told_at_their_deadlines_and_not_before() -> None:
    async def main() -> None:
        told: list[Late] = []
        second, first, never = Late(0.002, told), Late(0.001, told), Late(1e6, told)
        deadlines = Deadlines(lambda: 0.0)
        for serve in serves(never, second, first):
            deadlines.add(serve)
        await told_all(told, 2)
        deadlines.close()
        assert set(told) == {first, second}

    asyncio.run(main())


def test_serve_that_is_over_is_not_told_and_the_next_one_is() -> None:
    async def main() -> None:
        told: list[Late] = []
        over, late = Late(0, told), Late(0.001, told)
        deadlines = Deadlines(lambda: 0.0)
        for serve in serves(over, late):
            deadlines.add(serve)
        deadlines.remove(serves(over)[0])
        await told_all(told, 1)
        assert told == [late]

    asyncio.run(main())


def test_serve_is_told_again_until_its_patience_is_over_and_then_no_timer_is_left() -> None:
    async def main() -> None:
        told: list[Late] = []
        deadlines = Deadlines(lambda: 5.0)
        late = Late(4.0, told, again=2)
        for serve in serves(late):
            deadlines.add(serve)
        await told_all(told, 3)
        assert told == [late] * 3
        assert deadlines.idle

    asyncio.run(main())


def test_serve_that_was_added_after_all_others_were_over_is_told() -> None:
    async def main() -> None:
        told: list[Late] = []
        deadlines = Deadlines(lambda: 0.0)
        over, late = Late(0.5, told), Late(0, told)
        for serve in serves(over):
            deadlines.add(serve)
            deadlines.remove(serve)
        for serve in serves(late):
            deadlines.add(serve)
        await told_all(told, 1)
        assert told == [late]

    asyncio.run(main())
