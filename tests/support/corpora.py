"""Documents of others, which tests read where they lie; none of them is in this repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "MESH_CORPORA"


def find_corpus(name: str) -> Path | None:
    """The folder `name` in that which MESH_CORPORA names, else in shared/corpora beside this repository."""
    told = os.environ.get(VARIABLE)
    folder = (Path(told) if told else ROOT.parent / "shared" / "corpora") / name
    return folder if folder.is_dir() else None


def missing(name: str) -> str:
    return f"no corpus {name!r} here: {VARIABLE} names no folder that holds {name}/"


def corpus(name: str) -> Path:
    """The folder; where there is none, the module that asks is skipped."""
    found = find_corpus(name)
    if found is None:
        pytest.skip(missing(name), allow_module_level=True)
    return found
