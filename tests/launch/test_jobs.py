"""Jobs by the commands that nodes run, in this machine's own sh."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from mesh.launch.commands import Step
from mesh.launch.jobs import clean_step, end_step, log_step, poll_step, start_step


def run(step: Step, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", step.command], env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, check=False
    )


def end(home: Path) -> str:
    while (state := run(poll_step("a", "j"), home).stdout.strip()) == "running":
        time.sleep(0.01)
    return state


def test_job_of_a_name_that_another_had_is_held_to_its_own_end(tmp_path: Path) -> None:
    assert run(start_step("a", "build", "j", "echo one; exit 3"), tmp_path).returncode == 0
    assert end(tmp_path) == "3"
    os.mkfifo(tmp_path / "gate")
    assert run(start_step("a", "build", "j", 'cat "$HOME/gate"; echo two'), tmp_path).returncode == 0
    assert run(poll_step("a", "j"), tmp_path).stdout == "running\n"
    (tmp_path / "gate").write_text("go\n")
    assert end(tmp_path) == "0"
    assert run(log_step("a", "j"), tmp_path).stdout == "go\ntwo\n"
    run(clean_step("a", "j"), tmp_path)
    assert list((tmp_path / ".mesh" / "jobs").iterdir()) == []


def test_job_that_is_ended_is_lost(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reached")
    command = 'echo here >"$HOME/reached"; sleep 1000'
    assert run(start_step("a", "build", "j", command), tmp_path).returncode == 0
    assert (tmp_path / "reached").read_text() == "here\n"
    run(end_step("a", "j"), tmp_path)
    assert end(tmp_path) == "lost"


def test_job_whose_folder_cannot_be_made_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / ".mesh").write_text("")
    done = run(start_step("a", "build", "j", 'touch "$HOME/ran"'), tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("no folder for it, or no setsid\n")
    (tmp_path / ".mesh").unlink()
    (tmp_path / ".mesh/jobs/j/run").mkdir(parents=True)  # as a disk that takes no file
    assert run(start_step("a", "build", "j", 'touch "$HOME/ran"'), tmp_path).returncode == 1
    assert not (tmp_path / ".mesh/jobs/j/pid").exists()
