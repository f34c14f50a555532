"""How many processes `-n auto` is."""

from __future__ import annotations

import os

import pytest

MOST = 8


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The cores that this process may run on: by itself pytest-xdist counts the machine's, or half of them."""
    return min(len(os.sched_getaffinity(0)), MOST)
