"""A timer that is moved on: on a clock that stands still, so that nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mesh.engine.alarm import Alarm


class Clock:
    """A loop's timers, gone through by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, call, (), asyncio.get_running_loop())
        self.timers.append(timer)
        return timer

    def until(self, now_s: float) -> None:
        while due := [timer for timer in self.timers if not timer.cancelled() and timer.when() <= now_s]:
            first = min(due, key=lambda timer: timer.when())
            self.timers.remove(first)
            self.now_s = first.when()
            first._run()
        self.now_s = now_s

    @property
    def armed(self) -> int:
        return sum(not timer.cancelled() for timer in self.timers)


def told(test: Callable[[Clock, Alarm, list[float]], None]) -> None:
    async def main() -> None:
        clock, rung = Clock(), list[float]()
        alarm = Alarm(lambda: rung.append(clock.now_s))
        alarm._loop = clock  # type: ignore[assignment]
        test(clock, alarm, rung)

    asyncio.run(main())


def test_it_rings_once_at_its_time_and_may_be_set_again() -> None:
    def test(clock: Clock, alarm: Alarm, rung: list[float]) -> None:
        alarm.set(5)
        clock.until(4.9)
        assert rung == []
        clock.until(20)
        assert (rung, clock.armed) == ([5], 0)
        alarm.set(21)
        clock.until(30)
        assert rung == [5, 21]

    told(test)


def test_moved_on_it_keeps_one_timer_and_rings_at_the_last_time_it_was_set_to() -> None:
    def test(clock: Clock, alarm: Alarm, rung: list[float]) -> None:
        for second in range(100):
            clock.until(second)
            alarm.set(second + 5)
            assert clock.armed == 1
        assert len(clock.timers) == 1
        clock.until(200)
        assert rung == [104]

    told(test)


def test_set_to_an_earlier_time_it_rings_then_and_not_again() -> None:
    def test(clock: Clock, alarm: Alarm, rung: list[float]) -> None:
        alarm.set(60)
        alarm.set(5)
        assert clock.armed == 1
        clock.until(100)
        assert rung == [5]

    told(test)


def test_closed_it_leaves_no_timer_and_nothing_to_call() -> None:
    def test(clock: Clock, alarm: Alarm, rung: list[float]) -> None:
        alarm.set(5)
        alarm.close()
        alarm.close()
        assert (clock.armed, alarm._ring) == (0, None)
        clock.until(10)
        assert rung == []

    told(test)
