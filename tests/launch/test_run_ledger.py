"""RC-08: stale locks, run ledgers, and looks that lie."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import LaunchError
from mesh.launch.looking import Seen
from mesh.launch.process import Holder, boot_id
from mesh.launch.run_choice import check_opened
from mesh.launch.run_ledger import LOCK_FILE, Run, RunLedger
from mesh.launch.runs import _state, close_by_hand
from mesh.launch.stopping import Target
from tests.launch.recipes import clusters

THIS = Holder.this()
NODES = tuple(clusters().clusters[0].by_rank)
TARGET = Target("r1", NODES, 30_000, "tmux")
OPENED = {"event": "opened", "run": "r1", "at_ns": 1, "model": "m"}


@pytest.fixture
def ledger(tmp_path: Path) -> RunLedger:
    return RunLedger(tmp_path / "recipe")


def left_by(ledger: RunLedger, text: str) -> None:
    ledger.folder.mkdir(parents=True, exist_ok=True)
    (ledger.folder / LOCK_FILE).write_text(text)


NOBODY = 2**22 + 1  # above the largest id that the kernel gives out


@pytest.mark.parametrize(
    ("holder", "found"),
    [
        ({"pid": 0}, "which is gone"),
        ({"started": THIS.started + 1}, "whose number another program has now"),
        ({"boot": "another"}, "of an earlier boot"),
    ],
    ids=["dead pid", "reused pid", "another boot"],
)
def test_rc_08_stale_lock_is_taken_over_once_and_recorded(
    ledger: RunLedger, holder: dict[str, object], found: str
) -> None:
    told = {**THIS.to_map(), **holder}
    if told["pid"] == 0:
        told["pid"] = NOBODY
    left_by(ledger, json.dumps(told))
    with ledger.locked(at_ns=5) as stale:
        assert stale is not None
        assert found in stale
    with ledger.locked(at_ns=6) as stale:
        assert stale is None
    (event,) = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert (event["event"], event["at_ns"]) == ("stale-lock", 5)


def test_rc_08_lock_of_another_host_cannot_be_judged_from_here(ledger: RunLedger) -> None:
    left_by(ledger, json.dumps({**THIS.to_map(), "host": "elsewhere"}))
    with pytest.raises(LaunchError, match="of host elsewhere, which cannot be looked at"), ledger.locked(at_ns=1):
        pass


def test_rc_08_of_two_starters_exactly_one_wins(ledger: RunLedger) -> None:
    left_by(ledger, json.dumps({**THIS.to_map(), "pid": NOBODY}))
    with (
        ledger.locked(at_ns=1),
        pytest.raises(LaunchError, match=f"another launcher is at work on it: process {os.getpid()}"),
        ledger.locked(at_ns=1),
    ):
        pass


def test_rc_08_lock_of_a_process_that_was_killed_holds_nothing(ledger: RunLedger) -> None:
    program = (
        "import sys, os, signal; from pathlib import Path; from mesh.launch.run_ledger import RunLedger\n"
        "with RunLedger(Path(sys.argv[1])).locked(at_ns=1): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(ledger.folder)], check=False)
    with ledger.locked(at_ns=2) as stale:
        assert stale is not None
        assert stale.startswith("process ")


def test_lock_that_names_nobody_is_said(ledger: RunLedger) -> None:
    left_by(ledger, "garbage")
    with ledger.locked(at_ns=1) as stale:
        assert stale == "a lock that names nobody: 'garbage'"


def test_holder_is_this_process_of_this_boot() -> None:
    assert (THIS.host, THIS.boot, THIS.pid) == (socket.gethostname(), boot_id(), os.getpid())
    assert THIS.life()[0] == "alive"
    assert Holder.of({**THIS.to_map(), "pid": "1"}) is None
    assert Holder.of(THIS.to_map()) == THIS


def test_ledger_passes_over_a_line_that_a_crash_cut_and_keeps_the_next_whole(ledger: RunLedger) -> None:
    ledger.append(OPENED)
    with ledger.path.open("ab") as file:
        file.write(b'{"event": "rea')
    assert [run.phase for run in ledger.runs()] == ["starting"]
    ledger.append({"event": "ready", "run": "r1", "at_ns": 2})
    (run,) = ledger.runs()
    assert (run.phase, run.open) == ("ready", True)


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"closed","run":"r1","at_ns":1e999}',
        b"null",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"event":"ready","run":["r1"]}',
        b'{"event":"ready","run":"r1\\ud800"}',
    ],
    ids=["infinite", "null", "deep", "no text", "no id", "half a character"],
)
def test_line_that_is_damaged_takes_no_other_with_it(ledger: RunLedger, line: bytes) -> None:
    ledger.append(OPENED)
    with ledger.path.open("ab") as file:
        file.write(line + b"\n")
    ledger.append({"event": "ready", "run": "r1", "at_ns": 2})
    (run,) = ledger.runs()
    assert (run.phase, run.open) == ("ready", True)
    assert ledger.damaged() == f"{ledger.path}: line 2: damaged, and passed over"


def test_run_whose_opening_is_damaged_stays_open_and_can_only_be_closed_by_hand(ledger: RunLedger) -> None:
    """What it started may run still: a launch beside it would not know."""
    ledger.append({"event": "ready", "run": "r1", "at_ns": 2})
    run = ledger.open_run()
    assert run is not None
    with pytest.raises(LaunchError, match=r"run r1: damaged in runs\.jsonl: port missing"):
        check_opened("recipe", run)
    close_by_hand(ledger, "r1", 9)
    assert ledger.open_run() is None


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("port", 0, "port is 0, expected 1 to 65535"),
        ("port", True, "port is 'True', expected int"),
        ("deploy", "k8s", "deploy is 'k8s', expected docker or tmux"),
        ("nodes", [], "the ledger names no nodes"),
        ("nodes", [{"name": "a", "ssh_ip": "-oProxyCommand=x", "rank": 0}], "ssh_ip: string should match"),
        ("run", "../../x", "'../../x' is no id of one"),
    ],
)
def test_opening_that_says_what_cannot_be_is_damaged(key: str, value: object, fault: str) -> None:
    opened = {
        **OPENED, "port": 30_000, "deploy": "tmux", "engine": "mesh", "cluster": "c",
        "nodes": [{"name": "a", "ssh_ip": "h", "rank": 0}],
    }  # fmt: skip
    assert check_opened("recipe", Run("r1", opened)).id == "r1"
    damaged = {**opened, key: value}
    with pytest.raises(LaunchError) as raised:
        check_opened("recipe", Run(str(damaged["run"]), damaged))
    assert "damaged in runs.jsonl: " in str(raised.value)
    assert fault in str(raised.value)


def test_ledger_that_cannot_be_written_is_named_with_what_was_to_be_in_it(ledger: RunLedger) -> None:
    ledger.path.mkdir(parents=True)
    with pytest.raises(LaunchError, match=r"runs\.jsonl: 'opened' could not be written: is a directory"):
        ledger.append(OPENED)


def test_run_is_closed_by_hand_and_says_that_nothing_was_looked_at(ledger: RunLedger) -> None:
    with pytest.raises(LaunchError, match="no open run"):
        close_by_hand(ledger, None, 1)
    ledger.append(OPENED)
    close_by_hand(ledger, "r1", 9)
    (run,) = ledger.runs()
    assert run.closed == {"event": "closed", "run": "r1", "at_ns": 9, "how": "by-hand", "verified": False}
    assert ledger.open_run() is None


def seen(node: str, process: str, port: str = "dead", model: str | None = None) -> Seen:
    return Seen(node, process, port, model, "told")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "lost", "state"),
    [
        ([seen("a", "alive", "alive", "m"), seen("b", "alive")], [], "up"),
        ([seen("a", "alive"), seen("b", "alive")], [], "starting"),
        ([seen("a", "dead"), seen("b", "dead")], [], "stale"),
        ([seen("a", "dead")], ["b: no route"], "inconclusive"),
        ([seen("a", "unknown"), seen("b", "alive")], [], "inconclusive"),
        ([seen("a", "dead", "alive", "other"), seen("b", "dead")], [], "differs"),
        ([seen("a", "alive", "alive", "other"), seen("b", "alive")], [], "differs"),
        ([seen("a", "alive", "alive", "m"), seen("b", "dead")], [], "differs"),
    ],
)
def test_rc_08_state_is_what_ledger_and_nodes_say_together(found: list[Seen], lost: list[str], state: str) -> None:
    assert _state(Run("r1", OPENED, "ready"), found, lost, "m", TARGET)[0] == state
    before = "starting" if state == "up" else state  # a list of models alone is what a server has that warms up
    assert _state(Run("r1", OPENED), found, lost, "m", TARGET)[0] == before


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([seen("a", "dead"), seen("b", "dead")], "stopped"),
        ([seen("a", "dead", "alive", "x"), seen("b", "dead")], "differs"),
        ([seen("a", "alive"), seen("b", "dead")], "differs"),
    ],
)
def test_rc_08_closed_run_whose_port_is_taken_or_processes_live_differs(found: list[Seen], state: str) -> None:
    run = Run("r1", OPENED, closed={"event": "closed", "how": "stopped"})
    assert _state(run, found, [], "m", TARGET)[0] == state


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 4096, b"{"], ids=["no text", "deep", "cut"])
def test_lock_that_is_damaged_names_nobody(ledger: RunLedger, text: bytes) -> None:
    ledger.folder.mkdir(parents=True)
    (ledger.folder / LOCK_FILE).write_bytes(text)
    assert ledger.at_work() is None
    with ledger.locked(at_ns=1) as stale:
        assert stale is not None
        assert stale.startswith("a lock that names nobody: ")
        assert ledger.at_work() == f"process {os.getpid()}"
    assert (ledger.at_work(), ledger.damaged()) == (None, None)


def test_lock_on_a_disk_that_is_full_is_named(ledger: RunLedger) -> None:
    ledger.folder.mkdir(parents=True)
    (ledger.folder / LOCK_FILE).symlink_to("/dev/full")
    with pytest.raises(LaunchError, match=r"lock: could not be written: "), ledger.locked(at_ns=1):
        pass
