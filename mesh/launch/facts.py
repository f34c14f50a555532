"""What is looked up on each node before anything starts there, and written down: program, environment, weights."""

from __future__ import annotations

import shlex

from mesh.launch.commands import (
    Step,
    at_home,
    container_name,
    inherited_step,
    log_path,
    placeholder_step,
    program_step,
)
from mesh.launch.config import LaunchConfig
from mesh.launch.effective import log_command
from mesh.launch.plan import Options, Plan, model_cache
from mesh.launch.ranks import CACHE_IN_CONTAINER, program_of
from mesh.launch.recipe import RecipeFile
from mesh.launch.staging import composed_weights_step, weights_step


def fact_steps(config: LaunchConfig, plan: Plan, options: Options) -> list[Step]:
    """Those of every rank, in the order in which they are run."""
    recipe, cache = plan.file.recipe, model_cache(config, plan.file, options)
    inside = CACHE_IN_CONTAINER if recipe.deploy == "docker" else cache
    full = options.stage == "force"
    steps: list[Step] = []
    for rank in plan.ranks:
        if recipe.deploy == "tmux":
            steps += [inherited_step(rank.node, recipe), program_step(rank.node, recipe, [program_of(recipe)])]
        weights = weights_step(rank.node, recipe, cache, full=full)
        if recipe.composed_model is not None:
            weights = composed_weights_step(rank.node, plan.run, cache, full=full)
        steps += [] if weights is None else [weights]
        steps += [placeholder_step(rank.node, mount, cache, inside) for mount in recipe.extra_mounts if mount.repo]
    return steps


def said_step(node: str, file: RecipeFile, run: str) -> Step:
    """Prints the lines in which the head's engine says what it runs with."""
    if file.recipe.deploy == "docker":
        command = f"docker logs {shlex.quote(container_name(file.name, 0))} 2>&1 | {log_command('')}"
    else:
        command = log_command(at_home(log_path(run, 0)))
    return Step(node, "what the engine says", command)
