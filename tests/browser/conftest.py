"""The lane in a real browser: `make test-browser`. MESH_BROWSER names Chromium's executable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.lanes import skip_below

CHROMIUM = os.environ.get("MESH_BROWSER")


def pytest_configure() -> None:
    # In CI the lane without its browser is a broken CI, not a reason to leave the page untested.
    if CHROMIUM == "" and "CI" in os.environ:
        raise pytest.UsageError("tests/browser: CI has no chromium, so that the page was not tested")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM:
        return
    why = "no browser lane here: `make test-browser` runs it"
    if CHROMIUM is not None:
        why = "NOT TESTED: the page needs chromium on the PATH (apt-get install chromium)"
    skip_below(Path(__file__).parent, items, why)
