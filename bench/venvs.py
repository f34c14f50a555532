"""Virtual environments of their own for peers whose dependencies do not go with ours, made once and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measure import PeerMissing

ROOT = Path(__file__).parent.parent
_INSTALL_TIMEOUT_S = 900


def python_of(name: str, *requirements: str, then: Sequence[str] = ()) -> Path:
    """The interpreter of `.venv-bench-<name>`, with `requirements` installed, and then what needs them to be there, as
    `then` says it to pip. Raises PeerMissing where they cannot be; what pip said goes to stderr."""
    folder = ROOT / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    done = folder / ".requirements"  # written last: a half-made environment is made again
    wanted = "\n".join((*requirements, *then))
    if done.exists() and done.read_text() == wanted and python.exists():
        return python
    print(f"bench: installing {', '.join(requirements)} into {folder.name}", file=sys.stderr, flush=True)
    _run(name, sys.executable, "-m", "venv", "--clear", str(folder))
    _run(name, str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    if then:
        _run(name, str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *then)
    done.write_text(wanted)
    return python


def _run(name: str, *command: str) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{name} could not be installed within {_INSTALL_TIMEOUT_S} s") from None
    if ran.returncode:
        print(ran.stdout + ran.stderr, file=sys.stderr)
        raise PeerMissing(f"{name} could not be installed (exit {ran.returncode})")
