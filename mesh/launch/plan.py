"""A launch on paper: which nodes, which ranks, and every command in the order of its phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh.errors import UsageError
from mesh.launch.commands import (
    Step,
    built_step,
    clear_steps,
    compose_steps,
    docker_run,
    free_space_step,
    gid_step,
    hook_steps,
    image_step,
    pull_step,
    record_path,
    tmux_start,
    venv_steps,
)
from mesh.launch.config import LaunchConfig
from mesh.launch.image_names import has_registry
from mesh.launch.images import context_of, is_built
from mesh.launch.plugins import NONE, Plugins
from mesh.launch.ranks import Rank, ranks_of
from mesh.launch.recipe import RecipeFile
from mesh.launch.selection import Chosen
from mesh.launch.staging import mirror_steps
from mesh.launch.toml_file import read_bounded

PHASES = ("prepare", "stage", "hooks", "start")


@dataclass(frozen=True, slots=True)
class Options:
    """Of one launch. `mirror` and `hf_cache` are folders on the nodes and exclude each other; `stage` is "check",
    "skip" or "force"."""

    mirror: str | None = None
    hf_cache: str | None = None
    stage: str = "check"
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """`phases` maps each of PHASES to its steps. All nodes end a phase before any begins the next."""

    run: str
    file: RecipeFile
    chosen: Chosen
    ranks: tuple[Rank, ...]
    image: str | None
    phases: Mapping[str, tuple[Step, ...]]

    @property
    def steps(self) -> list[Step]:
        return [step for phase in PHASES for step in self.phases[phase]]

    def to_map(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "recipe": self.file.name,
            "recipe_sha256": self.file.digest,
            "cluster": self.chosen.cluster.name,
            "image": self.image,
            "ranks": [
                {
                    "rank": rank.rank,
                    "node": rank.node.name,
                    "argv": list(rank.argv),
                    "environment": dict(rank.environment),
                }
                for rank in self.ranks
            ],
            "steps": [{"phase": phase, **step.to_map()} for phase in PHASES for step in self.phases[phase]],
        }


def model_cache(config: LaunchConfig, file: RecipeFile, options: Options) -> str:
    """The folder on each node that has the models. Raises UsageError where two options name one."""
    mirrors = [block.dst for block in file.recipe.staging if block.kind == "hub-mirror"]
    if options.mirror is not None and options.hf_cache is not None:
        raise UsageError(
            "--mirror and --hf-cache exclude each other: both name the folder that the models are read from"
        )
    if options.mirror is not None and mirrors:
        raise UsageError(f"--mirror: the recipe stages to {mirrors[0]} already")
    if mirrors:
        return mirrors[0]
    return options.mirror or options.hf_cache or config.hf_cache_dir


def make_plan(
    config: LaunchConfig,
    file: RecipeFile,
    chosen: Chosen,
    *,
    run: str,
    options: Options = Options(),
    gid: Mapping[str, str] | None = None,
    placeholders: Mapping[str, Mapping[str, str]] | None = None,
    plugins: Plugins = NONE,
) -> Plan:
    """`gid` and `placeholders` are what was found on the nodes, None in a dry run. Raises UsageError for a recipe that
    cannot be launched so."""
    recipe = file.recipe
    built = context_of(file) if is_built(file) else None
    image = built.ref if built is not None else recipe.image if recipe.deploy == "docker" else None
    if recipe.deploy == "docker" and image is None:
        raise UsageError(f"recipe {file.name}: docker_image: missing, and deploy is docker")
    cache = model_cache(config, file, options)
    model = recipe.repo if recipe.composed_model is None else recipe.composed_model.mount
    ranks = ranks_of(
        config,
        recipe,
        chosen,
        model=model,
        gid=gid,
        placeholders=placeholders,
        record=record_path(run) if recipe.engine == "mesh" and recipe.deploy == "tmux" else None,
    )
    nccl = config.nccl.get(chosen.cluster.name)
    phases: dict[str, list[Step]] = {phase: [] for phase in PHASES}
    script = _venv_script(file)
    for rank in ranks:
        node = rank.node
        if image is not None:
            phases["prepare"] += [
                pull_step(node, image)
                if built is None
                else built_step(node, image, built.checksum, pull=has_registry(image)),
                image_step(node, image),
            ]
        elif recipe.deploy == "tmux":
            phases["prepare"] += venv_steps(node, recipe, script)
        if len(ranks) > 1 and nccl is not None and not nccl.ib_disable and nccl.ib_gid_index is None:
            phases["prepare"].append(gid_step(node, nccl.ib_hca))
        if options.stage != "skip":
            for block in recipe.staging:
                if block.min_free is not None:
                    phases["stage"].append(free_space_step(node, block.dst, block.min_free))
            phases["stage"] += mirror_steps(node, config, file, options.mirror, force=options.stage == "force")
            for block in recipe.staging:
                if block.kind != "hub-mirror":
                    phases["stage"] += plugins.staging_steps(file, block, rank, len(ranks), chosen.tensor_parallel_size)
        if recipe.composed_model is not None:
            phases["stage"] += compose_steps(node, recipe.composed_model, run, cache)
        if options.clear:
            phases["hooks"] += clear_steps(node, config, recipe)
        phases["hooks"] += hook_steps(node, "before_serve", config.hooks_for(chosen.cluster.name) + recipe.before_serve)
        if image is not None:
            phases["start"].append(
                docker_run(
                    config,
                    recipe,
                    rank,
                    run=run,
                    image=image,
                    nodes=len(ranks),
                    cache=cache,
                    name=file.name,
                    fabric=nccl is not None and not nccl.ib_disable,
                )
            )
        else:
            phases["start"].append(tmux_start(recipe, rank, run=run))
    return Plan(run, file, chosen, tuple(ranks), image, {phase: tuple(steps) for phase, steps in phases.items()})


def _venv_script(file: RecipeFile) -> str | None:
    name = file.recipe.venv_setup_script
    if name is None:
        return None
    return read_bounded(file.path.parent / Path(name)).decode("utf-8")
