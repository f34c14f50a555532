"""Whether ranges of layers make up a whole model."""

from __future__ import annotations

from collections.abc import Iterable


def coverage_gap(ranges: Iterable[tuple[int, int]], layer_count: int) -> str | None:
    """Why the ranges, each with its first layer and the one after its last, are not the layers 0 to `layer_count`; None
    where they are. They may overlap: then one of two hosts computes a layer, and the route says which. A hole is fatal:
    its layers would be left out, and tokens would come all the same."""
    covered = 0
    for start, end in sorted(ranges):
        if start > covered:
            return f"layers {covered} to {start} are on no shard"
        covered = max(covered, end)
    if covered < layer_count:
        return f"layers {covered} to {layer_count} are on no shard"
    if covered > layer_count:
        return f"the shards have layers up to {covered}, the model has {layer_count}"
    return None
