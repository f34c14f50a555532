"""What a recipe and its configuration would start today, held against what was started: by file, then by what of it
moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from mesh.errors import MeshError
from mesh.launch.config import Loaded
from mesh.launch.plan import make_plan
from mesh.launch.ranks import AUTO_GID
from mesh.launch.recipe import RecipeFile
from mesh.launch.record import HIDDEN, LaunchRecord, shown
from mesh.launch.running import Kept, file_drift
from mesh.launch.selection import Chosen

_TENSOR_FLAGS = ("--tensor-parallel-size", "--tp")


def drift_of(kept: Kept, now: RecipeFile | str, config: Loaded) -> list[str]:
    """A line for each thing that differs; none where nothing does. `now` is the recipe's file, or why it cannot be
    read."""
    lines = file_drift(kept, now, config)
    if not lines or kept.record is None or isinstance(now, str):
        return lines
    try:
        return [*lines, *_of_ranks(kept.record, config, now)]
    except MeshError as e:
        return [*lines, f"the recipe cannot be launched so any more: {e}"]


def _of_ranks(record: LaunchRecord, config: Loaded, file: RecipeFile) -> list[str]:
    then = record.fields
    nodes = [str(rank["node"]) for rank in then["ranks"]]
    clusters = [one for one in config.config.clusters if set(nodes) <= {node.name for node in one.nodes}]
    if not clusters:
        return [f"no cluster has the nodes {', '.join(nodes)} any more"]
    by_name = {node.name: node for node in clusters[0].nodes}
    # --fit and --solo are of the launch and not of its files: how many ways the tensors were cut stays as it was
    tensors = _value(then["ranks"][0]["argv"], _TENSOR_FLAGS)
    ways = int(tensors) if tensors is not None and tensors.isdigit() else file.recipe.tensor_parallel_size
    chosen = Chosen(clusters[0], tuple(by_name[name] for name in nodes), ways)
    plan = make_plan(config.config, file, chosen, run=str(then["run"]))
    now = {"image": plan.image, "model_revision": file.recipe.revision, "engine_version": file.recipe.engine_version}
    lines = [
        f"{name}: launched with {then.get(name) or 'none'}, now {value or 'none'}"
        for name, value in now.items()
        if then.get(name) != value
    ]
    for rank, was in zip(plan.ranks, then["ranks"], strict=True):
        where = f"rank {rank.rank} on {rank.node.name}"
        lines += [f"{where}: {one}" for one in _argv(was["argv"], rank.argv)]
        lines += [f"{where}: {one}" for one in _environment(was["environment"], rank.environment)]
    return lines


def _argv(then: Sequence[str], now: Sequence[str]) -> list[str]:
    lines = []
    for kind, i, j, k, m in SequenceMatcher(None, list(then), list(now), autojunk=False).get_opcodes():
        was, would = " ".join(then[i:j]), " ".join(now[k:m])
        if kind == "equal" or "{{" in would:  # a placeholder is filled at launch
            continue
        flag = f"{then[i - 1]} " if i and then[i - 1].startswith("--") and kind == "replace" else ""
        lines.append(f"launched with `{flag}{was}`, now `{flag}{would}`".replace("``", "nothing"))
    return lines


def _environment(then: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted(then.keys() | now.keys()):
        was, would = then.get(name), None if name not in now else shown(name, now[name])
        if was == would or (would is not None and (would == AUTO_GID or "{{" in would)) or was == would == HIDDEN:
            continue
        told = ["not set" if one is None else f"`{one}`" for one in (was, would)]
        lines.append(f"{name}: launched with {told[0]}, now {told[1]}")
    return lines


def _value(argv: Sequence[str], flags: Sequence[str]) -> str | None:
    return next((argv[i + 1] for i, word in enumerate(argv[:-1]) if word in flags), None)
