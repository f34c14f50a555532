"""A small soak: what `python -m bench.soak` does with ten thousand requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.soak import soak


@pytest.mark.deep
def test_clients_that_leave_at_any_time_leave_nothing_behind(tmp_path: Path) -> None:
    report = asyncio.run(soak(tmp_path, 400, 32, seed=7))
    assert report.faults == []
    assert sum(report.statuses.values()) == report.requests == 400
    assert report.finishes.keys() == {"length", "cancelled"}
    assert report.statuses.keys() <= {"200", "left"}
