"""Whether parts make a whole: every layer computed by somebody, and everybody computing the same."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.errors import RouteIncompatible
from mesh.identity.coverage import coverage_gap
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.mismatch import RANGE, UNCERTIFIED, Mismatch, explain, listed
from mesh.identity.registry import Registry
from mesh.identity.shard import ShardIdentity


def check_route(
    shards: Sequence[ShardIdentity], *, registry: Registry | None = None, for_certification: bool = False
) -> tuple[Mismatch, ...]:
    """Every reason why these may not form a route, none where they may. All are held to the first. With a `registry`
    the recipe has to be certified, or, on a route that only is to certify it, known there."""
    if not shards:
        return (Mismatch(RANGE, "shards", "the route has no shards, expected at least 1"),)
    head = shards[0]
    out: list[Mismatch] = []
    for index, shard in enumerate(shards[1:], start=1):
        out.extend(explain(head, shard, shard_index=index))
    gap = coverage_gap(((shard.shard_start, shard.shard_end) for shard in shards), head.artifact.layer_count)
    if gap is not None:
        out.append(Mismatch(RANGE, "layers", gap))
    if registry is not None:
        status = registry.status(head.fingerprint)
        if not (status.may_certify if for_certification else status.may_serve):
            out.append(Mismatch(UNCERTIFIED, "status", f"{status.status}: {status.detail}"))
    return tuple(out)


def require_route(
    shards: Sequence[ShardIdentity], *, registry: Registry | None = None, for_certification: bool = False
) -> CompatibilityFingerprint:
    """The fingerprint of a route that may be used. Raises RouteIncompatible with every reason."""
    mismatches = check_route(shards, registry=registry, for_certification=for_certification)
    if mismatches:
        raise RouteIncompatible(f"route: {listed(mismatches)}", reasons=[one.to_map() for one in mismatches])
    return shards[0].fingerprint
