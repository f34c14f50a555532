"""Room for serves in front of one engine: so many run, so many wait, the rest are told when to come back.

Callers take turns: whose turn it is gets one of its waiting serves in, however many another has waiting. A full queue
makes room for a caller who has fewer in it by turning away the newest of the caller who has most.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable

from mesh.errors import EngineUnavailable, MeshError, Overloaded

_RETRY_MAX_S = 60
_WEIGHT = 0.2  # of the newest serve in the running mean


class Room:
    """`slots` serves run at once, `queue` more wait their turn, for at most `wait_s` seconds."""

    def __init__(self, slots: int, queue: int, wait_s: float, clock: Callable[[], float]) -> None:
        self.slots = slots
        self.running = 0
        self._queue = queue
        self._wait_s = wait_s
        self._clock = clock
        self._mean_s = 1.0
        # by caller, who is next in front; a caller is in here while it has someone waiting
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._closed = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._turns.values()))

    @property
    def full(self) -> bool:
        """Whether the next serve has to wait."""
        return self.running >= self.slots

    @property
    def load(self) -> float:
        """Serves that run or wait, for each that can run at once."""
        return (self.running + self.waiting) / self.slots

    def overloaded(self, caller: str) -> Overloaded | None:
        """Why there is no place for another serve of `caller`, not even to wait; None where there is one."""
        if self.running < self.slots or self.waiting < self._queue or self._greedier(caller) is not None:
            return None
        return self._fault()

    def take(self) -> bool:
        """Take a slot that is free; False where there is none. Raises EngineUnavailable where the room was closed."""
        if self._closed:
            raise _closing()
        if self.running >= self.slots:
            return False
        self.running += 1
        return True

    async def enter(self, caller: str, wait_s: float = math.inf) -> bool:
        """Take a slot; True where it had to be waited for. Raises Overloaded where there is no place to wait, it took
        longer than the room lets anyone wait, or another caller had a better claim to the place; TimeoutError where it
        took longer than `wait_s`; EngineUnavailable where the room was closed."""
        if self.take():
            return False
        if self.waiting >= self._queue:
            greedier = self._greedier(caller)
            if greedier is None:
                raise self._fault()
            self._turn_away(greedier, self._fault())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(caller, deque()).append(turn)
        try:
            async with asyncio.timeout(min(wait_s, self._wait_s)):
                await turn
        except BaseException as e:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._hand_on()  # it got its slot in the very moment in which it gave up
            else:
                self._forget(caller, turn)
            if isinstance(e, TimeoutError) and self._wait_s <= wait_s:
                raise self._fault() from None
            raise
        return True

    def leave(self, started: float) -> None:
        """Give the slot back. `started` is the clock's reading when it was taken."""
        self._mean_s += _WEIGHT * (self._clock() - started - self._mean_s)
        if self._turns:
            self._hand_on()
        else:
            self.running -= 1

    def close(self) -> None:
        """Let nobody in any more, and send away who waits."""
        self._closed = True
        for caller in list(self._turns):
            while caller in self._turns:
                self._turn_away(caller, _closing())

    def _hand_on(self) -> None:
        """The slot that became free goes to whose turn it is."""
        while self._turns:
            caller, turns = self._turns.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._turns[caller] = turns  # behind everyone else
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _greedier(self, caller: str) -> str | None:
        """Who has so many more waiting than `caller` that one of them may be turned away for it; None: nobody."""
        if not self._turns:
            return None
        most = max(self._turns, key=lambda name: len(self._turns[name]))
        return most if len(self._turns[most]) > len(self._turns.get(caller, ())) + 1 else None

    def _turn_away(self, caller: str, fault: MeshError) -> None:
        turn = self._turns[caller][-1]
        self._forget(caller, turn)
        if not turn.done():
            turn.set_exception(fault)

    def _forget(self, caller: str, turn: asyncio.Future[None]) -> None:
        turns = self._turns.get(caller)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._turns[caller]

    def _fault(self) -> Overloaded:
        waiting = self.waiting
        retry_s = math.ceil(self._mean_s * (waiting + 1) / self.slots)
        return Overloaded(
            f"all {self.slots} slots are taken and {waiting} requests wait",
            retry_after_s=min(max(retry_s, 1), _RETRY_MAX_S),
        )


def _closing() -> EngineUnavailable:
    return EngineUnavailable("the server is shutting down")
