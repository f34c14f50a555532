"""The readings of the meters, and what serves see of them.

A serve's beginning and end each need a reading taken after they were asked for, or one so fresh that it stands for one
(see `allocation`). Whoever finds a fresh one waits for nothing. Where all meters are prompt, whoever finds a stale one
takes another; else a thread of its own does, and whoever asks while it is busy waits for the same next reading, so that
many serves cost few readings and no event loop ever waits for a driver.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from mesh.meter.allocation import Allocation, Counted, EpochTotals
from mesh.meter.asking import LATE, Ask, Figure, deliver, resolve
from mesh.meter.clock import boottime_beside
from mesh.meter.figure import absent
from mesh.meter.guards import Guards
from mesh.meter.looking import Look, TooLate
from mesh.meter.meters import Meters
from mesh.meter.protocol import EnergyMeter, Reading
from mesh.meter.sharing import Cover
from mesh.schema.energy import Energy

__all__ = ["Counted", "EpochTotals", "Metering"]

IDLE_INTERVAL_S = 1.0  # with no serve running, nobody waits for finer idle figures
PATIENCE_S = 5.0  # a driver that hangs longer costs the serve its figure, not its answer

_log = logging.getLogger(__name__)


_LOOKS = 2  # the one that was under way may have begun before anybody asked; the next one did not


class Metering:
    """Energy per serve over all meters. `interval_s` between polls while serves run, where it is not what the
    meters want; `random` gives the epoch ids.

    Raises MeterError where the meters' domains cannot stand in one receipt. Owns the meters: `close` closes them.
    Without meters there is no thread, and every figure is absent with reason `no-meter`.
    """

    def __init__(
        self,
        meters: Sequence[EnergyMeter],
        *,
        interval_s: float | None = None,
        random: Callable[[int], bytes] = os.urandom,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        boottime_ns: Callable[[], int] | None = None,
    ) -> None:
        self._now_ns = monotonic_ns
        self._boot_ns = boottime_ns or boottime_beside(monotonic_ns)
        self._meters = Meters(meters, self._boot_ns)
        self._interval_s = self._meters.interval_ns / 1e9 if interval_s is None else interval_s
        self._allocation = Allocation(self._meters.domains, lambda: random(16))
        self._books = threading.Lock()  # guards the allocation; held for microseconds, never while a meter is read
        self._bell = threading.Lock()  # held but for when it rings for the thread: cheaper by far than a Condition
        self._bell.acquire()
        self._wake = threading.Lock()  # guards what follows
        self._asks: list[Ask] = []
        self._state: Literal["new", "running", "closed"] = "new"
        self._reading_since: float | None = None
        self._thread: threading.Thread | None = None
        self._thread_ended = False
        self._guards = Guards(self._allocation)  # the thread's own
        self._ticked_ns = -math.inf  # when the latest reading began, by the clock that runs on while the machine sleeps
        self._stirred = False  # whether the thread knows of a serve, or has been woken for one
        self._covers: dict[str, Cover] = {}  # by engine
        self._look: Look | None = None
        self._missed: dict[bytes, tuple[int, str]] = {}  # those that count nowhere: begun when, and why

    def start(self) -> None:
        """Start reading. Once."""
        with self._wake:
            if self._state != "new":
                return
            self._state = "running"
        if self._meters.domains:
            self._thread = threading.Thread(target=self._run, name="mesh-meter", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop reading; serves still open get no figure. Returns when the thread has ended, or has been stuck in a
        driver for longer than anyone should wait."""
        with self._wake:
            if self._state == "closed":
                return
            self._state = "closed"
            self._ring()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                _log.error("meter thread: still inside a driver after %s s, left behind", PATIENCE_S)
                return
        self._meters.close()  # without their lock: in a process that was forked nobody may be left to give it back

    def begin_nowait(self, serve_id: bytes, recipe_id: str) -> bool:
        """Count the serve as active from a reading taken now, if that can be had without waiting for the thread. Where
        it cannot, nothing has begun, and `begin` waits."""
        cover = self._covers.get(recipe_id)
        if cover is None:
            cover = self._covers[recipe_id] = self._allocation.cover(recipe_id)
        now_ns = self._now_ns()
        if self._boot_ns() - self._ticked_ns > cover.slack_ns and not self._look_here(cover.slack_ns):
            return False
        books = self._books
        books.acquire()  # not `with`, which takes twice as long
        try:
            # A guard interval that this breaks is somebody's answer that waits no longer: the thread has to know. It
            # sets what it guards with the books held.
            if self._guards.waiting or not self._allocation.begin(serve_id, cover, now_ns, True):
                return False
        finally:
            books.release()
        if not self._stirred:
            self._stir()
        return True

    async def begin(self, serve_id: bytes, recipe_id: str) -> None:
        """Count the serve as active from a reading taken now. Never raises: where nothing can be counted, `end` says
        why."""
        if self.begin_nowait(serve_id, recipe_id):
            return
        cover, now_ns = self._covers[recipe_id], self._now_ns()
        fault = self._unable() if cover.pools else "no-meter"
        if fault is not None:
            self._missed[serve_id] = (now_ns, fault)
            return
        try:
            if cover.slack_ns > 0 and await self._seen(cover.slack_ns):
                with self._books:  # that reading was taken since this was asked: it need not be fresh any more
                    begun = not self._guards.waiting and self._allocation.begin(serve_id, cover, now_ns, True)
                if begun:
                    if not self._stirred:
                        self._stir()
                    return
            if await self._ask(Ask("begin", serve_id, now_ns, cover)) is LATE:
                raise TooLate
        except TooLate:
            self._missed[serve_id] = (now_ns, "meter-late")

    def end_nowait(self, serve_id: bytes, *, keep: bool = True) -> Energy | None:
        """The serve's figure as of `end`, if it can be had without waiting for the thread. Where it cannot, nothing has
        ended, and `end` waits."""
        now_ns = self._now_ns()
        age_ns = self._boot_ns() - self._ticked_ns
        books = self._books
        books.acquire()
        try:
            ended = self._allocation.end_between(serve_id, now_ns, age_ns, keep)
        finally:
            books.release()
        if ended is not None or not self._meters.prompt:
            return ended
        with self._books:
            began = self._allocation.began(serve_id)
            if began is None or age_ns <= began[1].slack_ns or (keep and self._allocation.guard_ns(serve_id)):
                return None
        if not self._look_here(began[1].slack_ns):
            return None
        with self._books:
            return self._allocation.end_between(serve_id, now_ns, 0, keep)

    async def end(self, serve_id: bytes, *, keep: bool = True) -> Energy:
        """The serve's figure, from a reading taken now. It stays open in `totals` until `sealed` or `discard`. Without
        `keep` (interrupted, abandoned) there is no figure, and what it held is unattributed."""
        ended = self.end_nowait(serve_id, keep=keep)
        if ended is not None:
            return ended
        now_ns = self._now_ns()
        if serve_id in self._missed:
            began_ns, fault = self._missed.pop(serve_id)
            return absent(fault, max(0, now_ns - began_ns))
        with self._books:
            began = self._allocation.began(serve_id)
        if began is None:
            return absent("not-begun")
        energy = await self._ended(serve_id, began[1].slack_ns, now_ns, keep)
        if isinstance(energy, Energy):
            return energy
        return absent("meter-late" if energy is LATE else "meter-stopped", max(0, now_ns - began[0]))

    async def _ended(self, serve_id: bytes, slack_ns: int, now_ns: int, keep: bool) -> Figure:
        """The figure from the next reading; None where there will be no more."""
        why = self._unable()
        if why == "meter-stopped":
            return None
        try:
            if why is not None:
                raise TooLate
            if slack_ns > 0 and await self._seen_by_end(serve_id, slack_ns, keep):
                with self._books:
                    ended = self._allocation.end_between(serve_id, now_ns, 0, keep)
                if ended is not None:
                    return ended
        except TooLate:
            self._put(Ask("discard", serve_id, now_ns))
            return LATE
        except asyncio.CancelledError:
            self._put(Ask("discard", serve_id, now_ns))
            raise
        return await self._ask(Ask("end", serve_id, now_ns, keep=keep))

    def sealed(self, serve_id: bytes) -> None:
        """The receipt with this serve's figure is in the ledger: `totals` no longer counts it as open. From any thread;
        called in the order of the receipts, it makes `totals` exact for a checkpoint between them."""
        self._allocation.sealed(serve_id)

    def discard(self, serve_id: bytes) -> None:
        """No receipt will carry this serve's figure: what it held is unattributed. From any thread."""
        self._missed.pop(serve_id, None)
        with self._books:
            self._allocation.discard(serve_id, self._now_ns())

    def totals(self) -> EpochTotals:
        """The running epoch's books as of the latest reading. From any thread."""
        with self._books:
            return self._allocation.totals()

    def counted(self) -> tuple[bytes, list[Counted]]:
        """The running epoch, and what each domain counted in it as of its latest reading. From any thread."""
        with self._books:
            return self._allocation.counted()

    def ended(self) -> list[EpochTotals]:
        """The books of the last ended epochs, oldest first. From any thread."""
        with self._books:
            return self._allocation.ended()

    def _unable(self) -> str | None:
        """Why no reading can be had now, without waiting for it."""
        if self._state != "running" or self._thread_ended:
            return "meter-stopped"
        since = self._reading_since
        if since is None:
            return None
        return "meter-late" if time.monotonic() - since > PATIENCE_S else None

    def _look_here(self, slack_ns: int) -> bool:
        """Take a reading in the caller's thread, where it would stand for one taken now, no meter keeps anybody
        waiting, and the thread is not taking one."""
        meters = self._meters
        if slack_ns < 0 or not meters.prompt or not meters.lock.acquire(blocking=False):
            return False
        try:
            if self._state != "running" or self._thread_ended:
                return False
            began_ns = time.monotonic_ns()
            _, boot_ns, readings = self._read()
            with self._books:
                self._take(boot_ns, readings)
            meters.took(began_ns)
        finally:
            meters.lock.release()
        return True

    def _read(self) -> tuple[int, int, list[Reading]]:
        """One reading of every meter, and when it began by either clock. With the meters' lock held."""
        boot_ns, now_ns = self._boot_ns(), self._now_ns()
        return now_ns, boot_ns, self._meters.read(now_ns)

    def _take(self, boot_ns: int, readings: list[Reading]) -> None:
        """A reading into the books, with their lock and the meters' held."""
        self._allocation.tick(readings)
        self._ticked_ns = boot_ns

    def _fresh(self, slack_ns: int) -> bool:
        """Whether the latest reading stands for one taken now."""
        return self._boot_ns() - self._ticked_ns <= slack_ns

    async def _seen(self, slack_ns: int) -> bool:
        """Whether the latest reading stands for one taken when this was asked, or was taken since; waits for the next
        one together with all others who do, where there is none yet. Raises TooLate."""
        asked_ns = self._boot_ns()
        for _ in range(_LOOKS):
            if self._ticked_ns >= asked_ns or self._fresh(slack_ns):
                return True
            loop, look = asyncio.get_running_loop(), self._look
            if look is None or look.done() or look.loop is not loop:
                look = self._look = Look(loop, PATIENCE_S)
                self._put(Ask("look", b"", 0, future=look))
            if not await look.wait():
                raise TooLate
        return self._ticked_ns >= asked_ns

    async def _seen_by_end(self, serve_id: bytes, slack_ns: int, keep: bool) -> bool:
        """The same for a serve that ends, unless it waits for a guard interval: that is the thread's to see to."""
        if keep:
            with self._books:
                if self._allocation.guard_ns(serve_id):
                    return False
        return await self._seen(slack_ns)

    def _stir(self) -> None:
        """The thread has something to look at more often than while nothing ran."""
        with self._wake:
            self._stirred = True
            self._ring()

    def _ring(self) -> None:
        """With `_wake` held."""
        if self._bell.locked():
            self._bell.release()

    async def _ask(self, ask: Ask) -> Figure:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Figure] = loop.create_future()
        ask.future = future
        self._put(ask)
        # not asyncio.timeout: two of those cost more than everything else in here
        late = loop.call_later(PATIENCE_S, resolve, [(future, LATE)])
        try:
            answer = await future
        except asyncio.CancelledError:
            # Whoever asked is gone: an open share would thin out everyone else's for ever.
            self._put(Ask("discard", ask.serve_id, ask.at_ns))
            raise
        finally:
            late.cancel()
        if answer is LATE:
            self._put(Ask("discard", ask.serve_id, ask.at_ns))
        return answer

    def _put(self, ask: Ask) -> None:
        with self._wake:
            if self._state == "running" and not self._thread_ended:
                self._asks.append(ask)
                self._ring()
                return
        if ask.future is not None:
            ask.future.set_result(None)

    def _run(self) -> None:
        asks: list[Ask] = []
        try:
            read_at = -math.inf  # the first reading is due at once
            while True:
                with self._wake:
                    if self._state != "running":
                        return
                    pause_s = 0.0 if self._asks else self._pause_s(read_at)
                    if pause_s <= 0:
                        asks, self._asks = self._asks, []
                if pause_s > 0:
                    self._bell.acquire(timeout=pause_s)
                    continue
                with self._meters.lock:
                    self._reading_since = read_at = time.monotonic()
                    now_ns, boot_ns, readings = self._read()
                    self._reading_since = None
                    with self._books:
                        self._take(boot_ns, readings)
                        done = self._guards.settle(asks, now_ns)
                        # whoever asked may be about to begin
                        self._stirred = bool(asks) or len(self._allocation) > 0
                asks = []
                deliver(done)
        finally:
            self._thread_ended = True
            with self._books:
                self._ticked_ns = -math.inf  # nobody begins or ends by that reading any more
            with self._wake:
                asks += self._asks
                self._asks = []
            deliver([(ask.future, None) for ask in (*asks, *self._guards.waiting) if ask.future is not None])

    def _pause_s(self, read_at: float) -> float:
        busy = self._stirred or len(self._allocation) > 0
        pause = read_at + (self._interval_s if busy else max(self._interval_s, IDLE_INTERVAL_S)) - time.monotonic()
        guarded = self._guards.pause_s(self._now_ns())
        return max(0.0, pause if guarded is None else min(pause, guarded))
