"""A launch and a stop on paper: every command that touches a node, in the order in which it would be run."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.launch.commands import Step, container_name, hook_steps, record_step
from mesh.launch.config import LaunchConfig, Node
from mesh.launch.facts import fact_steps, said_step
from mesh.launch.looking import (
    container_pids_step,
    container_state_step,
    containers_step,
    gpu_step,
    marked_step,
    port_step,
    session_step,
)
from mesh.launch.occupancy import occupancy_step
from mesh.launch.plan import Options, Plan
from mesh.launch.recipe import Recipe
from mesh.launch.stopping import Deadlines, Target, clean_command, end_command, signal_command

RECORD_ON_PAPER = b"(the signed record of the launch)"


def launch_steps(
    config: LaunchConfig, plan: Plan, options: Options, near: Sequence[Node]
) -> list[tuple[str, Step]]:  # fmt: skip
    """Pairs of a phase and a command. `near` are the nodes among which is chosen. What goes over HTTP, through the
    connection to the head, is no command: its health, its models, one completion."""
    recipe = plan.file.recipe
    port = recipe.port or config.default_port
    head = plan.chosen.nodes[0]
    steps = [("choose", occupancy_step(node, port)) for node in near]
    for phase in ("prepare", "stage"):
        steps += [(phase, step) for step in plan.phases[phase]]
    steps += [("look", step) for step in fact_steps(config, plan, options)]
    steps.append(("look", port_step(head.name, port)))
    steps += [("hooks", step) for step in plan.phases["hooks"]]
    steps += [("record", record_step(node, plan.run, RECORD_ON_PAPER)) for node in plan.chosen.nodes]
    steps += [("start", step) for step in plan.phases["start"]]
    for rank in plan.ranks:
        node = rank.node.name
        alive = (
            container_state_step(node, container_name(plan.file.name, rank.rank))
            if recipe.deploy == "docker"
            else session_step(node, plan.run)
        )
        steps.append(("wait", alive))
    steps.append(("compare", said_step(head.name, plan.file, plan.run)))
    steps += [("compare", marked_step(node.name, plan.run)) for node in plan.chosen.nodes]
    return steps


def stop_steps(
    target: Target, recipe: Recipe | None, deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
) -> list[tuple[str, Step]]:  # fmt: skip
    """Pairs of a phase and a command. The sweep is for what the first end leaves."""
    run, docker = target.run, target.deploy == "docker"
    steps = []
    for node in target.nodes:
        name = node.name
        steps.append(("look", marked_step(name, run)))
        if docker:
            steps.append(("look", container_pids_step(name, run)))
        steps.append(("end", Step(name, "end", end_command(run, target.deploy, deadlines.drain_s))))
        steps += [
            ("sweep", Step(name, f"{signal} to what is left", signal_command(run, signal), "warn"))
            for signal in ("TERM", "KILL")
        ]
        steps.append(("clean", Step(name, "clean", clean_command(run, target.deploy))))
        steps.append(("verify", marked_step(name, run)))
        steps.append(("verify", containers_step(name, run) if docker else session_step(name, run)))
        if node is target.nodes[0]:
            steps.append(("verify", port_step(name, target.port)))
        steps.append(("verify", gpu_step(name)))
        if recipe is not None:
            steps += [("after_stop", step) for step in hook_steps(node, "after_stop", recipe.after_stop)]
    return steps
