"""Folders of candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.candidates import MACOS, runtime_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The macOS candidate's runtime.json alone."""
    made = tmp_path / "candidate"
    made.mkdir()
    (made / "runtime.json").write_bytes(runtime_json(MACOS))
    return made
