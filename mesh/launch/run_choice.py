"""Which run is meant: the ledgers of a state folder, and one run of one of them by its id or the beginning of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mesh.errors import LaunchError, UsageError
from mesh.launch.run_ledger import LEDGER_FILE, Run, RunLedger
from mesh.launch.runs import nodes_of

_SHOWN = 5
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
# What every look at a run needs of the line that opened it.
_NEEDED = {"port": int, "deploy": str, "model": str, "engine": str, "nodes": list, "at_ns": int, "cluster": str}


def recipes_with_runs(root: Path) -> list[str]:
    """Names of recipes that have a ledger, in order. A folder that is not there has none."""
    return sorted(path.parent.name for path in root.glob(f"*/{LEDGER_FILE}")) if root.is_dir() else []


def every_ledger(root: Path) -> Iterator[tuple[str, RunLedger]]:
    for name in recipes_with_runs(root):
        yield name, RunLedger(root / name)


def check_opened(recipe: str, run: Run) -> Run:
    """Raises LaunchError where the line that opened the run does not say what is needed to look at it."""
    for key, kind in _NEEDED.items():
        value = run.opened.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            fault = "missing" if value is None else f"is {str(value)[:80]!r}, expected {kind.__name__}"
            raise LaunchError(f"recipe {recipe}: run {run.id}: damaged in {LEDGER_FILE}: {key} {fault}")
    try:
        if not _RUN_ID.match(run.id):
            raise UsageError(f"run: {run.id[:80]!r} is no id of one")
        if not 1 <= run.opened["port"] <= 65_535:
            raise UsageError(f"port is {run.opened['port']}, expected 1 to 65535")
        if run.opened["deploy"] not in ("docker", "tmux"):
            raise UsageError(f"deploy is {run.opened['deploy'][:80]!r}, expected docker or tmux")
        nodes_of(run)
    except UsageError as e:
        raise LaunchError(f"recipe {recipe}: damaged in {LEDGER_FILE}: {e}") from None
    return run


def run_of(root: Path, recipe: str, run_id: str | None = None) -> Run:
    """The run of that id or of that beginning; without one the open run, else the last. Raises LaunchError naming what
    there is instead."""
    runs = runs_of(root, recipe)
    if run_id is None:
        return check_opened(recipe, next((run for run in reversed(runs) if run.open), runs[-1]))
    near = [run for run in runs if run.id == run_id] or [run for run in runs if run.id.startswith(run_id)]
    if len(near) == 1:
        return check_opened(recipe, near[0])
    shown = ", ".join(run.id for run in (near or runs)[-_SHOWN:])
    fault = f"{len(near)} runs begin so" if near else "no such run"
    raise LaunchError(f"recipe {recipe}: run {run_id[:80]!r}: {fault}; there are {shown}")


def open_run_of(root: Path, recipe: str) -> Run:
    """Raises LaunchError where none is open."""
    runs = runs_of(root, recipe)
    run = next((one for one in reversed(runs) if one.open), None)
    if run is None:
        raise LaunchError(f"recipe {recipe}: no open run; the last was {runs[-1].id}, which is closed")
    return check_opened(recipe, run)


def runs_of(root: Path, recipe: str) -> list[Run]:
    """Oldest first, one at least. Raises LaunchError where there is none."""
    ledger = RunLedger(root / recipe)
    if not ledger.path.is_file():
        known = ", ".join(recipes_with_runs(root)) or "none"
        raise LaunchError(f"recipe {recipe[:80]}: never launched from here: no ledger in {root}; there are {known}")
    runs = ledger.runs()
    if not runs:
        raise LaunchError(f"recipe {recipe}: {ledger.path}: no line of it opens a run")
    return runs
