"""The bar of a long run: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from mesh.cli import audit_progress
from mesh.cli.audit_progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(audit_progress, "_EVERY_S", 0)
    with Progress() as progress:
        with progress.counting("checking") as tick:
            for _ in range(3):
                tick()
        with progress.counting("replaying", total=9, done=2) as tick:
            tick()
    return stream.getvalue()


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    said = run(Terminal(), monkeypatch)
    assert "checking" in said
    assert "replaying" in said
    assert "3/9" in said


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(io.StringIO(), monkeypatch) == ""


def test_a_bar_is_taken_down_when_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), Progress() as progress, progress.counting("checking"):
        raise KeyboardInterrupt
    assert progress._bar.finished or not progress._bar.live.is_started
