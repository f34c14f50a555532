"""What every child of an engine does first: tie itself to its parent, and take its pipes out of harm's way.

Frames come in at what was its standard input and go out at what was its standard output. Both are moved away, and
everything that a library prints goes to standard error, of which the parent keeps the end. No text that a client sent
is ever printed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType

from mesh.errors import MeshError

_PR_SET_PDEATHSIG = 1


def become_child(parent: int) -> tuple[int, int]:
    """Call first. The descriptors to read frames from and to write them to; `parent` is the parent's process id."""
    _die_with(parent)
    sys.excepthook = report
    threading.excepthook = lambda args: report(args.exc_type, args.exc_value, args.exc_traceback)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reading, writing


def report(kind: type[BaseException], value: BaseException | None, trace: TracebackType | None) -> None:
    """Print where something went wrong and what kind of thing, but none of its values: they may hold a prompt."""
    where = traceback.extract_tb(trace)[-1:] if trace is not None else []
    places = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in where)
    said = f": {value}" if isinstance(value, MeshError) else ""
    print(f"engine child: {kind.__name__}{places}{said}", file=sys.stderr, flush=True)


def _die_with(parent: int) -> None:
    """Linux ends this process with the thread that started it. Elsewhere, and should that not work, the closed pipe
    does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it went before we asked
            os._exit(0)
