"""Tests that need what one lane installs are skipped, by name, in every other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


def skip_below(folder: Path, items: Iterable[pytest.Item], reason: str) -> None:
    """Of all tests, those in `folder`. Paths are compared as text: thousands of them by their parents takes seconds."""
    skipped = pytest.mark.skip(reason=reason)
    inside = f"{folder}{os.sep}"
    for item in items:
        if str(item.path).startswith(inside):
            item.add_marker(skipped)
