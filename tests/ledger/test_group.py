"""What is done in one transaction, and in which order, as the work itself sees it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from mesh.errors import LedgerError
from mesh.ledger.group import MAX_GROUP, GroupCommit
from mesh.ledger.transaction import Transaction


class Seen:
    """A group over a database in memory, and what its transactions held: a list of names each."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.group = GroupCommit(
            self.db, begin=self.begin, translate=lambda e: LedgerError(str(e)), tend=lambda db: None
        )

    def begin(self, db: sqlite3.Connection) -> Transaction:
        db.execute("BEGIN IMMEDIATE")
        self.transactions.append([])
        return Transaction(db, 0, b"", set())

    def work(self, name: str):
        def work(transaction: Transaction) -> str:
            self.transactions[-1].append(name)
            return name

        return work


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.group.close()


def test_what_one_turn_of_a_loop_asks_for_is_one_transaction(seen: Seen) -> None:
    async def main() -> list[str]:
        return await asyncio.gather(*(seen.group.submit_async(seen.work(f"{n}")) for n in range(20)))

    names = [f"{n}" for n in range(20)]
    assert asyncio.run(main()) == names
    assert seen.transactions == [names]


def test_order_between_a_loop_and_who_waits_outside_it_is_kept(seen: Seen) -> None:
    async def main() -> None:
        first = seen.group.submit_async(seen.work("first"))
        assert seen.group.submit(seen.work("second")).result() == "second"
        assert await first == "first"

    asyncio.run(main())
    assert [name for names in seen.transactions for name in names] == ["first", "second"]


def test_what_was_asked_for_in_a_turn_that_never_ended_is_done_by_the_close(seen: Seen) -> None:
    loop = asyncio.new_event_loop()

    async def main() -> None:
        seen.group.submit_async(seen.work("asked"))
        loop.stop()

    task = loop.create_task(main())
    loop.run_forever()
    assert task.done()
    loop.close()
    seen.group.close()
    assert seen.transactions == [["asked"]]
    with pytest.raises(LedgerError, match="closed"):
        seen.group.submit(seen.work("late"))


def test_a_long_queue_is_done_in_transactions_of_at_most_so_many(seen: Seen) -> None:
    begun, held = threading.Event(), threading.Event()
    first = seen.group.submit(lambda transaction: begun.set() or held.wait())
    begun.wait()

    async def main() -> list[str]:
        many = [seen.group.submit_async(seen.work(f"{n}")) for n in range(2 * MAX_GROUP + 1)]
        asyncio.get_running_loop().call_soon(held.set)
        return await asyncio.gather(*many)

    assert asyncio.run(main()) == [f"{n}" for n in range(2 * MAX_GROUP + 1)]
    assert first.result()
    assert [len(names) for names in seen.transactions] == [0, MAX_GROUP, MAX_GROUP, 1]


def test_queue_that_is_closed_while_it_is_long_is_done_to_its_end(seen: Seen) -> None:
    held = threading.Event()
    futures = [seen.group.submit(lambda transaction: held.wait())]
    futures += [seen.group.submit(seen.work(f"{n}")) for n in range(MAX_GROUP + 5)]
    closing = threading.Thread(target=seen.group.close)
    closing.start()
    held.set()
    closing.join()
    assert all(future.done() for future in futures)
    assert sum(map(len, seen.transactions)) == MAX_GROUP + 5
