"""What is known of each recipe: its runs, its benches with their provenance, and what has drifted. Gathered for a
report, which only shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.launch_flags import ledgers, login_of, recipe_at, sources
from mesh.errors import LaunchError, SchemaError, UsageError
from mesh.launch.bench_package import REPORTS_FOLDER, Package, packages_in
from mesh.launch.drift import drift_of
from mesh.launch.recipe import RECIPE_FILE
from mesh.launch.run_choice import check_opened, recipes_with_runs
from mesh.launch.run_ledger import RunLedger
from mesh.launch.running import all_drift, all_unknown, kept_of, observe
from mesh.launch.runs import nodes_of, status_of
from mesh.launch.settings import Setting, settings_of
from mesh.launch.ssh import Hosts

if TYPE_CHECKING:
    from mesh.launch.config import Loaded
    from mesh.launch.recipe import RecipeFile
    from mesh.launch.run_ledger import Run


@dataclass(slots=True)
class Told:
    """Of one recipe. `state` is of its open run, or of its last one, whose `settings` were in force; `drift` of the
    open run against its record, and `unknown` what of it could not be looked at. `damaged` are packages that cannot be
    shown, and why."""

    name: str
    file: RecipeFile | None
    fault: str | None
    run: Run | None = None
    launches: int = 0
    state: str = "never launched"
    why: str | None = None
    drift: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    packages: list[Package] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def model(self) -> str:
        if self.file is not None:
            return self.file.recipe.model
        return str(self.run.opened.get("model", "not known")) if self.run is not None else "not known"

    @property
    def group(self) -> str:
        """What it is ranked under: the base model where the recipe names one."""
        parent = None if self.file is None else self.file.recipe.parent_model
        return parent or self.model

    @property
    def shown_model(self) -> str:
        return self.model if self.group == self.model else f"{self.model}, of {self.group}"

    @property
    def image(self) -> str:
        recipe = None if self.file is None else self.file.recipe
        return "no image" if recipe is None or recipe.image is None else recipe.image

    def stale(self, package: Package) -> bool:
        """Whether the recipe is another by now than the one that was measured."""
        return self.file is None or self.file.digest != package.manifest.recipe_sha256

    def to_map(self) -> dict[str, Any]:
        told = {
            "recipe": self.name, "group": self.group, "model": self.model, "state": self.state, "why": self.why,
            "launches": self.launches, "run": None if self.run is None else self.run.id, "fault": self.fault,
            "launch_digest": None if self.run is None else self.run.opened.get("record"), "drift": self.drift,
            "unknown": self.unknown, "damaged": self.damaged, "settings": [one.to_map() for one in self.settings],
            "benches": [
                {"manifest": str(one.path), "label": one.manifest.label, "ended_ms": one.manifest.ended_ms,
                 "provenance": one.chip, "recipe_changed_since": self.stale(one), "drift": one.manifest.drift,
                 "cells": len(one.data.cells), "cells_failed": one.data.failed}
                for one in self.packages
            ],
        }  # fmt: skip
        return {key: value for key, value in told.items() if value is not None}


def gather(names: Sequence[str], config: Loaded, *, live: bool, archived: bool | None) -> list[Told]:
    """Of the named recipes, else of all that have a file or a ledger; `archived` None takes both kinds. With `live` the
    nodes of open runs are asked. Raises UsageError for a name that neither recipe nor ledger has."""
    root = ledgers(config)
    folders = [path.parent.name for source in sources(config) for path in sorted(source.glob(f"*/{RECIPE_FILE}"))]
    every = list(dict.fromkeys([*folders, *recipes_with_runs(root)]))
    found = []
    for name in names or every:
        told = _one(name, config, root, live=live, asked=bool(names))
        if names or archived is None or (told.file is not None and told.file.recipe.archived) == archived:
            found.append(told)
    return sorted(found, key=lambda one: (one.group, one.name)) if not names else found


def _one(name: str, config: Loaded, root: Path, *, live: bool, asked: bool) -> Told:
    file: RecipeFile | None = None
    fault = None
    try:
        file = recipe_at(name, config)
    except (UsageError, OSError) as e:
        fault = str(e)
    told = Told(name if file is None else file.name, file, fault)
    runs = RunLedger(root / told.name).runs()
    if file is None and not runs and asked:  # of all, one that cannot be read hides no other
        raise UsageError(fault or f"recipe {name}: unknown")
    told.launches = len(runs)
    if runs:
        told.run = next((run for run in reversed(runs) if run.open), runs[-1])
        _of_run(told, config, root, live=live)
    if file is not None:
        for package in packages_in(file.path.parent / REPORTS_FOLDER):
            if isinstance(package, SchemaError):
                told.damaged.append(str(package))
            else:
                told.packages.append(package)
    return told


def _of_run(told: Told, config: Loaded, root: Path, *, live: bool) -> None:
    run = told.run
    assert run is not None
    kept = kept_of(root / told.name / run.id, told.name, run)
    if kept.record is not None and kept.recipe is not None:
        told.settings = settings_of(kept.record, kept.recipe.recipe)
    if not run.open:
        told.state, told.why = "closed", str((run.closed or {}).get("how", "")) or None
        return
    told.state = "open"
    try:
        check_opened(told.name, run)
    except LaunchError as e:
        told.why = str(e)
        return
    told.drift += drift_of(kept, told.file if told.file is not None else str(told.fault), config)
    if not live:
        told.unknown.append("what runs was not looked at: --live does")
        return

    async def look() -> None:
        login = login_of(config)
        status = await status_of(run, login, RunLedger(root / told.name))
        told.state, told.why = status.state, status.why
        async with Hosts(login, nodes_of(run)) as hosts:
            seen = await observe(hosts, run, kept)
        told.drift += all_drift(seen)
        told.unknown += all_unknown(seen)

    asyncio.run(look())
