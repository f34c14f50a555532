"""Why two identities do not go together, axis by axis: what an operator needs to put it right in a minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from mesh.identity.fields import SHOWN, shown
from mesh.identity.recipe import RECIPE_AXES
from mesh.identity.shard import ShardIdentity

ARTIFACT: Final = "artifact"
WEIGHT_QUANTIZATION: Final = "weight-quantization"
ACTIVATION_RECIPE: Final = "activation-recipe"
CACHE_LAYOUT: Final = "cache-layout"
TOKENIZER: Final = "tokenizer"
ARCHITECTURE: Final = "architecture"
BACKEND: Final = "backend"
RUNTIME: Final = "runtime"
BOUNDARY_SCHEMA: Final = "boundary-schema"
RANGE: Final = "range"
FINGERPRINT: Final = "fingerprint"
UNCERTIFIED: Final = "uncertified"

_BEFORE: Final = 20  # characters that two long values have in common and that are shown all the same

# Axes that fail for one cause in an operator's set-up share a reason; the field still tells them apart.
AXIS_REASONS: Final = {
    "weight_quantization": WEIGHT_QUANTIZATION,
    "activation_dtype": ACTIVATION_RECIPE,
    "compute_dtype": ACTIVATION_RECIPE,
    "kv_dtype": CACHE_LAYOUT,
    "kv_layout": CACHE_LAYOUT,
    "tokenizer_revision": TOKENIZER,
    "architecture_adapter": ARCHITECTURE,
    "backend_id": BACKEND,
    "runtime_version": RUNTIME,
    "boundary_schema_version": BOUNDARY_SCHEMA,
    "protocol_schema_version": BOUNDARY_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`reason` is one of the words above, `field` what differs, `detail` both values in words. `shard_index` counts the
    parts of a route from 0; None where it is about the route as a whole, or about two identities alone."""

    reason: str
    field: str
    detail: str
    shard_index: int | None = None

    def __str__(self) -> str:
        where = "" if self.shard_index is None else f"shard {self.shard_index}: "
        return f"{where}{self.reason}: {self.detail}"

    def to_map(self) -> dict[str, Any]:
        return {
            "reason": self.reason, "field": self.field, "detail": self.detail, "shard_index": self.shard_index,
        }  # fmt: skip


def explain(left: ShardIdentity, right: ShardIdentity, *, shard_index: int | None = None) -> tuple[Mismatch, ...]:
    """Everything on which `right` differs from `left`; nothing where both have one fingerprint."""
    out = []
    mine, theirs = left.artifact, right.artifact
    for reason, name, what in (
        (ARTIFACT, "source_digest", "digest of the whole model"),
        (ARCHITECTURE, "architecture", "architecture"),
        (ARCHITECTURE, "architecture_digest", "digest of the architecture's configuration"),
        (ARTIFACT, "layer_count", "number of layers"),
    ):
        was, is_ = getattr(mine, name), getattr(theirs, name)
        if was != is_:
            out.append(Mismatch(reason, name, f"{what} is {_told(is_, was)}", shard_index))
    for axis in RECIPE_AXES:
        was, is_ = getattr(left.recipe, axis), getattr(right.recipe, axis)
        if was != is_:
            out.append(Mismatch(AXIS_REASONS[axis], axis, f"{axis} is {_told(is_, was)}", shard_index))
    return tuple(out)


def listed(mismatches: Iterable[Mismatch]) -> str:
    """All of them in one line."""
    return "; ".join(map(str, mismatches))


def _told(is_: str | int, was: str | int) -> str:
    """Both values, which are of one kind; two long texts from a little before the place where they part."""
    if isinstance(is_, int):
        return f"{is_}, expected {was}"
    before, start = str(was), 0
    if max(len(is_), len(before)) > SHOWN:
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(is_, before, strict=False))
        start = max(0, len(list(alike)) - _BEFORE)
    more = "..." if start else ""
    return f"{more}{shown(is_[start:])}, expected {more}{shown(before[start:])}"
