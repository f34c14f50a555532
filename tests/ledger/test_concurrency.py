"""Many at once: threads that seal, processes that read, a report that takes its time."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time

import pytest

from mesh.ledger import check_sequence
from mesh.schema.envelope import RECEIPT_TYPE, verify

SERVES = 40

# Reads until its input ends; prints what it has seen: how often, the last count, and whether any read went wrong.
READER = """
import sys, pathlib, threading
from mesh.ledger import LedgerReader
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
with LedgerReader.open(pathlib.Path(sys.argv[1])) as reader:
    print("ready", flush=True)
    rounds = 0
    while True:
        last = end.is_set()
        count = reader.count()
        newest = [e.seq for e in reader.receipts(newest_first=True, limit=20)]
        assert newest == list(range(newest[0], newest[0] - len(newest), -1)) if newest else count == 0
        assert not newest or newest[0] + 1 >= count
        reader.open_intents()
        rounds += 1
        if last:
            break
    print(rounds, count)
"""


@pytest.mark.parametrize(("many", "reading"), [(12, 2), pytest.param(50, 4, marks=pytest.mark.deep)])
def test_many_threads_seal_while_processes_read(ledger, maker, path, capsys, many, reading):
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(reading)
    ]
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"
    errors: list[BaseException] = []
    waits: list[float] = []

    def seal(thread: int) -> None:
        try:
            for n in range(SERVES):
                before = time.perf_counter()
                maker.serve(ledger, n, thread=thread)
                waits.append(time.perf_counter() - before)
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    threads = [threading.Thread(target=seal, args=(n,)) for n in range(many)]
    for thread in threads:
        thread.start()
    report = ledger.reader.receipts()  # a long one: it goes on between the seals
    slow = [e.seq for e in itertools.islice(report, 20)]
    for thread in threads:
        thread.join()
    slow += [e.seq for e in report]
    said = [reader.communicate()[0].split() for reader in readers]
    assert errors == []
    assert [reader.returncode for reader in readers] == [0] * reading
    assert {count for _, count in said} == {str(many * SERVES)}
    assert slow == list(range(len(slow)))
    sealed = [verify(e.envelope, RECEIPT_TYPE, {maker.steward}) for e in ledger.reader.receipts()]
    check_sequence((s.value, s.id) for s in sealed)
    assert len({s.value.serve_id for s in sealed}) == many * SERVES
    assert ledger.open_intents() == []
    with capsys.disabled():
        p99 = sorted(waits)[len(waits) * 99 // 100]
        print(f" [{many} threads, {reading} reading processes: p99 of intent and seal {p99 * 1e3:.1f} ms] ", end="")
