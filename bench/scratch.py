"""Folders for what a measurement writes: on the disk that holds this project, which is seldom a RAM disk as /tmp may
be, and gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.venvs import ROOT


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=parent) as folder:
        yield Path(folder)
