"""Parts of the programs that stand in for engines in recipes."""

from __future__ import annotations

import os
from pathlib import Path

# What an engine that is split over hosts does: the head serves nobody before the other rank has come. A test may so
# take for true of every rank what it takes for true of one that answers.
MEETING = """
import os, pathlib, sys, time
there = pathlib.Path(__file__).with_name(os.environ["MESH_RUN"] + ".there")
if "--headless" in sys.argv: there.touch()
while not there.exists(): time.sleep(0.01)
"""

_GATE = """#!/bin/sh
case "$*" in *kill-server*) echo reached >"$HOME/reached"; cat "$HOME/gate" ;; esac
exec "$(PATH=/usr/local/bin:/usr/bin:/bin command -v tmux)" "$@"
"""


def shut(home: Path) -> Path:
    """A gate in tmux's place on a node: the stop of its engine comes no further than this until the test says so. Of
    the pipes in the home folder `reached` says that it came so far, and what is written to `gate` lets it go on. Taken
    away, it stops nobody else."""
    gate = home / "bin" / "tmux"
    gate.write_text(_GATE)
    gate.chmod(0o755)
    for name in ("reached", "gate"):
        os.mkfifo(home / name)
    return gate
