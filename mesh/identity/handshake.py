"""What a peer has to show before anything is opened with it: by the time that wrong numbers are in a cache there is
nothing left to save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mesh.errors import SchemaError
from mesh.identity.fields import shown
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.mismatch import ARTIFACT, FINGERPRINT, Mismatch, listed
from mesh.identity.shard import ShardIdentity

FINGERPRINT_MISMATCH: Final = "ERROR_CODE_FINGERPRINT_MISMATCH"


def check_handshake(local: ShardIdentity, presented: object) -> tuple[Mismatch, ...]:
    """Why a peer that presents this fingerprint (a map, as JSON gives it) is none for us; nothing where it is one."""
    try:
        theirs = CompatibilityFingerprint.from_map(presented)
    except SchemaError as e:
        return (Mismatch(FINGERPRINT, "fingerprint", f"the peer presents none that can be used: {e}"),)
    mine = local.fingerprint
    out = []
    if theirs.model_artifact_digest != mine.model_artifact_digest:
        detail = f"the peer serves {theirs.model_artifact_digest}, expected {mine.model_artifact_digest}"
        out.append(Mismatch(ARTIFACT, "model_artifact_digest", detail))
    if theirs.runtime_recipe_digest != mine.runtime_recipe_digest:
        detail = f"the peer runs {_named(theirs)}, expected {_named(mine)}"
        out.append(Mismatch(FINGERPRINT, "runtime_recipe_digest", detail))
    return tuple(out)


def handshake_error(mismatches: Sequence[Mismatch]) -> dict[str, Any] | None:
    """What a handshake that failed ends with; None where it did not."""
    if not mismatches:
        return None
    return {"code": FINGERPRINT_MISMATCH, "detail": listed(mismatches), "retryable": False}


def _named(fingerprint: CompatibilityFingerprint) -> str:
    name, version = shown(fingerprint.recipe_id), shown(fingerprint.recipe_version)
    return f"recipe {fingerprint.runtime_recipe_digest} ({name} version {version})"
