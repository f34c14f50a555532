"""Process trees, looked at on real processes."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from mesh.meter import process_tree as module
from mesh.meter.process_tree import ProcTree, PsutilTree, process_tree


def held() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_both_ways_to_look_at_a_tree_agree(worker: Any) -> None:
    worker.do("child", 0.1)
    worker.do("release")
    worker.do("child", 0.05)
    by_proc, by_psutil = ProcTree(), PsutilTree()
    one, other = by_proc.look(worker.pid), by_psutil.look(worker.pid)
    assert one is not None
    assert other is not None
    assert abs(one[1] - other[1]) <= 2  # each process is rounded by itself
    children = by_psutil.children(worker.pid)
    assert by_proc.children(worker.pid) == children
    assert len(children) == 1
    assert other == by_psutil.look(worker.pid)
    by_proc.close()


@pytest.mark.parametrize("kind", [ProcTree, PsutilTree])
def test_process_that_does_not_exist_is_none(worker: Any, kind: type[ProcTree | PsutilTree]) -> None:
    worker.end()
    tree = kind()
    assert tree.look(worker.pid) is None
    assert tree.children(worker.pid) == []
    tree.close()


def test_files_stay_open_between_looks_and_not_beyond(worker: Any) -> None:
    before = held()
    tree = ProcTree()
    tree.look(worker.pid)
    once = held()
    assert once > before
    worker.do("child", 0)
    tree.look(worker.pid)
    assert held() > once
    worker.do("release")
    tree.look(worker.pid)
    assert held() == once  # those of the child that ended are closed
    worker.end()
    assert tree.look(worker.pid) is None
    assert held() == before - 2  # nor are the pipes to the worker
    tree.close()


def test_tree_of_more_files_than_are_held_is_read_all_the_same(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 1)
    worker.do("child", 0.1)
    before = held()
    few, all_ = ProcTree(), PsutilTree()
    one, other = few.look(worker.pid), all_.look(worker.pid)
    assert held() == before + 1
    assert one is not None
    assert other is not None
    assert abs(one[1] - other[1]) <= 2
    few.close()
    assert held() == before


def test_child_of_a_thread_that_came_later_is_found(worker: Any) -> None:
    """In this process, whose threads the test has in hand."""
    tree = ProcTree()
    go, ready, done = threading.Event(), threading.Event(), threading.Event()
    pids: list[int] = []

    def start() -> None:
        pids.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ))
        ready.set()
        go.wait()
        os.kill(pids[0], 9)
        os.waitpid(pids[0], 0)
        done.set()

    assert worker.pid in tree.children(os.getpid())
    thread = threading.Thread(target=start)
    thread.start()
    ready.wait()
    assert pids[0] in tree.children(os.getpid())
    go.set()
    done.wait()
    thread.join()
    assert pids[0] not in tree.children(os.getpid())
    assert worker.pid in tree.children(os.getpid())
    tree.close()


def test_this_machine_has_a_way(worker: Any) -> None:
    tree = process_tree()
    assert tree.look(worker.pid) is not None
    tree.close()
