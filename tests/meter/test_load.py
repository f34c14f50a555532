"""The load under a calibration: it is there, it is counted, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from mesh.meter.load import Busy, Load, busy_seconds, logical_cores, processor_name


def spent(load: Load) -> float:
    return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in load.processes)


def test_load_keeps_processes_busy_and_leaves_none() -> None:
    with Load(2) as load:
        assert len(load.processes) == 2
        began = busy_seconds()
        before = spent(load)
        while spent(load) - before < 0.2:  # it does: nothing else makes this end
            os.sched_yield()
        used = spent(load) - before
        # the machine was at least as busy as they were, but for what its counters round
        assert busy_seconds() - began > used - 0.1
    assert all(process.returncode is not None for process in load.processes)


def test_load_of_nothing_is_none() -> None:
    with Load(0) as load:
        assert load.processes == []


def test_load_ends_with_what_it_was_made_for() -> None:
    load = Load(1)
    with pytest.raises(KeyboardInterrupt), load:
        raise KeyboardInterrupt
    assert load.processes[0].returncode is not None


def test_load_outlives_no_parent_that_was_killed() -> None:
    code = (
        "import os, signal; from mesh.meter.load import Load\n"
        "with Load(1) as load: print(load.processes[0].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60)


def test_busy_cores_are_cpu_seconds_over_seconds() -> None:
    clock, spent = iter([5 * 10**9, 7 * 10**9]), iter([100.0, 103.0])
    assert Busy(lambda: next(clock), lambda: next(spent)).cores_u() == 1_500_000


def test_machine_has_a_name_and_cores() -> None:
    assert processor_name()
    assert logical_cores() >= 1
