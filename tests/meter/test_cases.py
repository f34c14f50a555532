"""Cases of energy figures gone wrong elsewhere that no other test here is about. EN-09, EN-10."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mesh.meter
from mesh.meter.allocation import Allocation
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
from mesh.meter.protocol import Domain, Reading

S = 10**9
A, B = bytes([1]) * 16, bytes([2]) * 16
GPU = Domain("gpu0", "nvml-total", 20_000_000, None, modelled=False)


def books() -> Allocation:
    """A steady 120 W for ten seconds, and A from its beginning."""
    allocation = Allocation([GPU], lambda: bytes(16))
    allocation.tick([Reading("gpu0", 0, 0)])
    allocation.begin(A, allocation.cover("m"), 0)
    allocation.tick([Reading("gpu0", 5 * S, 600_000_000)])
    return allocation


def test_serve_aborted_halfway_leaves_what_it_held_to_nobody() -> None:  # EN-10 e
    allocation = books()
    allocation.begin(B, allocation.cover("m"), 5 * S)
    allocation.end(A, 5 * S, keep=False)
    allocation.tick([Reading("gpu0", 10 * S, 1_200_000_000)])
    b = allocation.end(B, 10 * S)
    (row,) = allocation.totals().domains
    assert (b.uj, row.unattributed_uj, row.idle_uj) == (600_000_000, 600_000_000, 0)


def test_shares_do_not_depend_on_what_a_serve_did() -> None:
    """EN-10 d: the rule is equal/1 and says so; tokens are no measurement of energy, prefilled or decoded."""
    allocation = books()
    allocation.begin(B, allocation.cover("m"), 5 * S)
    allocation.tick([Reading("gpu0", 10 * S, 1_200_000_000)])
    a, b = allocation.end(A, 10 * S), allocation.end(B, 10 * S)
    assert (a.rule, a.basis, b.rule, b.basis) == ("equal/1", "allocated", "equal/1", "allocated")
    assert (a.uj, b.uj) == (900_000_000, 300_000_000)


def test_nothing_is_added_after_a_receipt_was_sealed() -> None:  # EN-09
    allocation = books()
    a = allocation.end(A, 5 * S)
    allocation.sealed(A)
    allocation.tick([Reading("gpu0", 10 * S, 1_200_000_000)])
    (row,) = allocation.totals().domains
    assert (a.uj, row.idle_uj, row.open_uj) == (600_000_000, 600_000_000, 0)


def test_meter_thread_ends_when_the_measured_block_raises() -> None:  # EN-09 b
    before = threading.active_count()

    async def run() -> None:
        metering = Metering([CpuTimeMeter("m", os.getpid, 10**6)])
        metering.start()
        try:
            await metering.begin(A, "m")
            raise ValueError("the engine failed")
        finally:
            metering.close()

    with pytest.raises(ValueError, match="the engine failed"):
        asyncio.run(run())
    assert threading.active_count() == before


def test_no_meter_looks_at_the_wall_clock() -> None:  # EN-09 d: set back or forward, it changes no figure
    (folder,) = mesh.meter.__path__
    for path in Path(folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("time_ns", "CLOCK_REALTIME", "now", "utcnow"), path
                named = isinstance(node.value, ast.Name) and node.value.id == "time"
                assert not (named and node.attr == "time"), path


def test_process_that_was_forked_has_no_meter_thread_and_closes_at_once() -> None:  # EN-09 f
    code = """
import os, threading
from mesh.meter.cpu_time import CpuTimeMeter
from mesh.meter.metering import Metering
metering = Metering([CpuTimeMeter("m", os.getpid, 10**6)])
metering.start()
if os.fork() == 0:
    metering.close()
    os._exit(threading.active_count())
_, status = os.wait()
metering.close()
print(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
