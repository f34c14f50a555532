"""The first step of a stop, by the commands that nodes run, in this machine's own sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mesh.launch.commands import tmux_start
from mesh.launch.config import Node
from mesh.launch.ranks import Rank
from mesh.launch.stopping import end_command
from tests.launch.recipes import recipe_file

TMUX = '#!/bin/sh\necho "$*" >>"$HOME/asked"\n'


def test_start_that_comes_after_the_stop_of_its_run_starts_nothing(tmp_path: Path) -> None:
    """Of a launcher that was killed, a command may still be on its way."""
    shim = tmp_path / "bin" / "tmux"
    shim.parent.mkdir()
    shim.write_text(TMUX)
    shim.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{shim.parent}:{os.environ['PATH']}"}

    def sh(command: str) -> int:
        return subprocess.run(["sh", "-c", command], env=env, check=False).returncode

    recipe = recipe_file('engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\n').recipe
    rank = Rank(0, Node(name="a", ssh_ip="h", rank=0), ("mesh", "serve"), {})
    for run in ("r1", "r2"):
        assert sh(tmux_start(recipe, rank, run=run).command) == 0
    started = (tmp_path / "asked").read_text().count("new-session")
    assert started == 2
    assert sh(end_command("r1", "tmux", 1)) == 0
    assert sh(tmux_start(recipe, rank, run="r1").command) != 0
    assert sh(tmux_start(recipe, rank, run="r2").command) == 0
    assert (tmp_path / "asked").read_text().count("new-session") == started + 1


def test_stop_that_is_over_while_the_run_starts_ends_what_started(tmp_path: Path) -> None:
    recipe = recipe_file('engine = "mesh"\ndeploy = "tmux"\nmodel = "reference"\n').recipe
    shim = tmp_path / "bin" / "tmux"
    shim.parent.mkdir()
    (tmp_path / "stop").write_text(end_command("r1", "tmux", 1))
    shim.write_text(TMUX + 'case "$*" in *new-session*) sh "$HOME/stop" ;; esac\n')
    shim.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    start = tmux_start(recipe, Rank(0, Node(name="a", ssh_ip="h", rank=0), ("mesh", "serve"), {}), run="r1")
    done = subprocess.run(["sh", "-c", start.command], env=env, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the run is stopped\n")
    words = [line.split()[2] for line in (tmp_path / "asked").read_text().splitlines()]
    assert words == ["-f", "list-panes", "kill-server"]
