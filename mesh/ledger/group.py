"""The writer thread: takes all waiting work, does it in one transaction, and tells everyone after the commit.

One fsync is shared by whoever waited for the one before, and by all that an event loop asks for in one turn. Where a
piece of work fails, which is seldom, all are done once more with a savepoint each, so that it leaves its neighbours
alone; a transaction that fails fails all of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mesh.errors import LedgerError
from mesh.ledger.format import rollback
from mesh.ledger.transaction import Transaction

MAX_GROUP = 512  # pieces of work in one transaction

T = TypeVar("T")


Work = Callable[[Transaction], Any]
"""Done again, from where it began, where a neighbour fails."""


@dataclass(slots=True)
class _Job:
    work: Work
    future: Future[Any] | asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop | None  # whose thread must resolve the future; None: any
    value: Any = None
    error: BaseException | None = None


class GroupCommit:
    """Owns `db` and the thread that uses it. `begin` starts a transaction or raises; `translate` makes the error that
    waiters see of one of SQLite's; `tend` is called on the thread after each commit."""

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        begin: Callable[[sqlite3.Connection], Transaction],
        translate: Callable[[sqlite3.Error], LedgerError],
        tend: Callable[[sqlite3.Connection], None],
    ) -> None:
        self._db = db
        self._begin = begin
        self._translate = translate
        self._tend = tend
        self._waiting: SimpleQueue[list[_Job] | None] = SimpleQueue()  # None is the last
        self._left: list[_Job] = []  # what was over in the last group, on the thread
        self._door = threading.Lock()
        # what each loop has asked for in the turn that it is in
        self._turns: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._run, name="mesh-ledger", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Transaction], T]) -> Future[T]:
        """Queue `work`. Cancelling the future before its turn keeps it from running."""
        future: Future[T] = Future()
        with self._door:
            self._check_open()
            self._let_in()
            self._waiting.put([_Job(work, future, None)])
        return future

    def submit_async(self, work: Callable[[Transaction], T]) -> asyncio.Future[T]:
        """The same for a coroutine, which is woken together with all others of its loop. Once called, the work is
        done whether or not anybody still awaits it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(work, future, loop)
        with self._door:
            self._check_open()
            turn = self._turns.get(loop)
            if turn is None:
                self._turns[loop] = [job]
                loop.call_soon(self._end_turn)
            else:
                turn.append(job)
        return future

    def close(self) -> None:
        """Finish what is queued, then stop. Later submissions raise LedgerError."""
        with self._door:
            if not self._closing:
                self._closing = True
                self._let_in()
                self._waiting.put(None)
        self._thread.join()

    def _check_open(self) -> None:
        if self._closing:
            raise LedgerError("ledger: closed")

    def _end_turn(self) -> None:
        with self._door:
            self._let_in()

    def _let_in(self) -> None:
        """What the loops have asked for so far, in its order. Called with the door held."""
        for jobs in self._turns.values():
            self._waiting.put(jobs)
        self._turns.clear()

    def _take(self) -> list[_Job]:
        """Whatever waits, once anything does; nothing at the end."""
        jobs, self._left = self._left, []
        try:
            while not self._ended and len(jobs) < MAX_GROUP:
                more = self._waiting.get(block=not jobs)
                if more is None:
                    self._ended = True
                else:
                    jobs += more
        except Empty:
            pass
        self._left = jobs[MAX_GROUP:]
        return jobs[:MAX_GROUP]

    def _run(self) -> None:
        while jobs := self._take():
            live = [j for j in jobs if not isinstance(j.future, Future) or j.future.set_running_or_notify_cancel()]
            if live:
                self._commit(live)
                _resolve(live)
        self._db.close()

    def _commit(self, jobs: list[_Job]) -> None:
        try:
            transaction = self._begin(self._db)
            if not self._all_done(transaction, jobs):
                self._roll_back()
                transaction = self._begin(self._db)
                transaction.gather = False
                for job in jobs:
                    self._attempt(transaction, job)
            self._db.execute("COMMIT")
            transaction.committed()
        except BaseException as e:  # noqa: BLE001 - whatever it is, the waiters must hear of it and the thread live on
            self._roll_back()
            for job in jobs:
                if job.error is None:
                    job.value, job.error = None, self._visible(e)
            return
        self._tend(self._db)

    def _all_done(self, transaction: Transaction, jobs: list[_Job]) -> bool:
        """Run every piece of work; False as soon as one fails."""
        try:
            for job in jobs:
                job.value = job.work(transaction)
            transaction.flush()
        except BaseException:  # noqa: BLE001 - it is raised again by the attempt on that piece alone
            return False
        return True

    def _attempt(self, transaction: Transaction, job: _Job) -> None:
        """Run one piece of work in its savepoint. Raises only if the whole transaction is lost."""
        db = transaction.db
        count, head = transaction.count, transaction.head
        db.execute("SAVEPOINT job")
        try:
            job.value = job.work(transaction)
        except BaseException as e:
            if not db.in_transaction:  # SQLite gave all of it up: a full disk, a failing one
                raise
            job.error = self._visible(e)
            transaction.count, transaction.head = count, head
            db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # the next BEGIN says what is wrong, to someone who waits for it
            rollback(self._db)

    def _visible(self, error: BaseException) -> BaseException:
        # one object per waiter: exceptions collect the frames they pass through
        if isinstance(error, sqlite3.Error):
            return self._translate(error)
        if isinstance(error, LedgerError):
            return type(error)(str(error))
        return error


def _resolve(jobs: list[_Job]) -> None:
    per_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        if job.loop is not None:
            per_loop.setdefault(job.loop, []).append(job)
        elif job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)
    for loop, theirs in per_loop.items():
        with suppress(RuntimeError):  # the loop is closed: what is durable stays, nobody is left to hear of it
            loop.call_soon_threadsafe(_resolve_on_loop, theirs)


def _resolve_on_loop(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():  # its awaiter was cancelled
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.value)
