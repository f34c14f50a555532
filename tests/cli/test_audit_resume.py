"""An audit that is killed or called off goes on where it was, and ends in the report that it would have had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.schema.ids import steward_text
from tests.support.audits import KEY, Day, make_day

TRUST = steward_text(KEY.public)
SERVES = 12

# The command, which begins no fourth replay: it says so when three are in its journal, and waits to be ended.
HELD = """
import asyncio, sys
from mesh.cli import audit_journal, audit_replays
from mesh.cli.main import main

add, replay, begun, added = audit_journal.Journal.add, audit_replays.replay, 0, 0

def counted(self, one):
    global added
    add(self, one)
    added += 1
    if added == 3:
        print("three", flush=True)

async def held(*args):
    global begun
    begun += 1
    if begun > 3:
        await asyncio.Event().wait()
    return await replay(*args)

audit_journal.Journal.add, audit_replays.replay = counted, held
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_day(SERVES).write(tmp_path_factory.mktemp("day"))


def command(archive: Path, journal: Path | None, *flags: str) -> list[str]:
    disclosures = str(archive.parent / "disclosures")
    argv = ["audit", str(archive), "--trust", TRUST, "--reference", "--disclosures", disclosures]
    return [*argv, *(() if journal is None else ("--resume", str(journal))), *flags, "--json"]


def timeless(told: Any) -> Any:
    """A report without what every run takes anew."""
    if isinstance(told, dict):
        return {key: timeless(value) for key, value in told.items() if key not in ("time", "replay_ns")}
    return [timeless(one) for one in told] if isinstance(told, list) else told


def begun(archive: Path, journal: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """An audit in mid-run, with three verdicts in its journal."""
    with subprocess.Popen(
        [sys.executable, "-c", HELD, *command(archive, journal, *flags)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "three\n"
        yield running


@pytest.mark.parametrize(
    "flags",
    [
        ("--sample", "7", "--seed", "07" * 32), pytest.param((), marks=pytest.mark.deep),
        pytest.param(("--jobs", "3"), marks=pytest.mark.deep),
    ],
)  # fmt: skip
def test_a_killed_audit_goes_on_and_ends_in_the_same_report(
    mesh, archive: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    whole = mesh(*command(archive, None, *flags))
    journal = tmp_path / "journal"
    for running in begun(archive, journal, *flags):
        running.kill()
        assert running.wait() == -signal.SIGKILL
    kept = journal.read_bytes()
    assert kept.count(b"\n") == 1 + 3
    resumed = mesh(*command(archive, journal, *flags))
    assert (whole.code, resumed.code) == (0, 0)
    assert timeless(resumed.json) == timeless(whole.json)
    assert "3 receipts of" in resumed.err
    assert journal.read_bytes().startswith(kept)
    again = mesh(*command(archive, journal, *flags))
    assert again.json == resumed.json
    assert len(journal.read_bytes().splitlines()) == 1 + resumed.json["replays"]["receipts"]


@pytest.mark.deep
def test_an_audit_that_is_called_off_leaves_a_journal_that_goes_on(mesh, archive: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for running in begun(archive, journal):
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
        assert running.returncode == 130
        assert out == ""
        assert "stopped after" in err
        assert f"--resume {journal} goes on" in err
    assert mesh(*command(archive, journal)).json["replays"]["verdicts"] == {"verified": SERVES}


def test_a_steward_that_served_on_meanwhile_is_audited_up_to_the_head_of_the_first_run(mesh, tmp_path: Path) -> None:
    longer = make_day(SERVES + 3)
    day = Day(longer.cases[:SERVES])
    journal = tmp_path / "journal"
    first = mesh(*command(day.write(tmp_path / "first"), journal)).json
    grown = longer.write(tmp_path / "grown", [day.checkpoint, *longer.sealed])
    later = mesh(*command(grown, journal)).json
    assert later["receipts"] == SERVES + 3
    assert later["plan"]["strata"][0]["head"] == first["plan"]["strata"][0]["head"]
    assert later["replays"] == first["replays"]


@pytest.mark.parametrize("flags", [("--name", "x"), ("--score",), ("--sample", "2", "--seed", "07" * 32)])
def test_a_journal_of_another_audit_is_refused(mesh, archive: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    journal = tmp_path / "journal"
    assert mesh(*command(archive, journal)).code == 0
    result = mesh(*command(archive, journal, *flags))
    assert result.code == 2
    assert "was begun by another audit" in json.loads(result.out)["error"]["message"]
