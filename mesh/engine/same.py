"""Whether what runs now is what was measured: a process can be started again with another library or another cache."""

from __future__ import annotations

from mesh.errors import IdentityChanged
from mesh.identity.mismatch import explain, listed
from mesh.identity.shard import ShardIdentity


def check_same(engine: str, was: ShardIdentity | None, now: ShardIdentity | None, *, how: str = "") -> None:
    """Raises IdentityChanged naming every axis on which `now` is another than `was`; `how` is what else is known of the
    change. Nothing is said where one of the two is not known."""
    if was is None or now is None:
        return
    mismatches = explain(was, now)
    if mismatches:
        raise IdentityChanged(f"{engine}: no longer the one that was measured: {how}{listed(mismatches)}")
