"""What `mesh` says of identities beside each other, as lines that a runner compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh.identity.evidence import ForwardEvidence
from mesh.identity.mismatch import Mismatch
from mesh.identity.registry import Registry
from mesh.identity.route import check_route
from mesh.identity.shard import ShardIdentity


def identity_line(mismatches: Iterable[Mismatch], good: str, refused: str) -> str:
    """`good` where there are none; else `refused` and each as `[INDEX:]REASON:FIELD`."""
    words = [_word(mismatch) for mismatch in mismatches]
    return refused + " ".join(words) if words else good


def route_line(shards: Sequence[ShardIdentity], known: str, *, for_certification: bool) -> str:
    """`known` is what a registry has of the first one's recipe; `-`: there is none to ask."""
    registry = None if known == "-" else Registry()
    if registry is not None and known != "unknown":
        registry.register(shards[0])
        if known == "certified":
            layers = shards[0].artifact.layer_count
            seen = ForwardEvidence("s", 0, ("a", "b"), ((0, layers), (0, layers)), 1, layers, 0)
            registry.certify(shards[0], seen)
    return identity_line(
        check_route(shards, registry=registry, for_certification=for_certification), "admitted", "refused "
    )


def _word(mismatch: Mismatch) -> str:
    where = "" if mismatch.shard_index is None else f"{mismatch.shard_index}:"
    return f"{where}{mismatch.reason}:{mismatch.field}"
