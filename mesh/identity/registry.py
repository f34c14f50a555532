"""Which recipes are known, and which of them a real forward has shown to work.

A recipe is dark when it comes: known, seen by operators, and not there for users. What was never registered is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from mesh.errors import RecipeNotCertified
from mesh.identity.evidence import ForwardEvidence
from mesh.identity.fields import shown
from mesh.identity.fingerprint import CompatibilityFingerprint
from mesh.identity.shard import SCHEMA_VERSION, ShardIdentity

Status = Literal["unknown", "dark", "certified"]

_UNKNOWN: Final = "this recipe was never registered here"
_DARK: Final = "registered, and no real forward over several hosts has certified it"


@dataclass(frozen=True, slots=True)
class RecipeStatus:
    """`evidence` is what certified it, None until then."""

    status: Status
    fingerprint: CompatibilityFingerprint
    evidence: ForwardEvidence | None = None

    @property
    def detail(self) -> str:
        if self.evidence is not None:
            nodes = len(self.evidence.node_ids)
            return f"certified by route session {self.evidence.route_session_id} over {nodes} nodes"
        return _DARK if self.status == "dark" else _UNKNOWN

    @property
    def may_serve(self) -> bool:
        """Whether users' requests may come here."""
        return self.status == "certified"

    @property
    def may_certify(self) -> bool:
        """Whether it may run to be certified: else nothing ever could be."""
        return self.status != "unknown"

    def to_map(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "detail": self.detail,
            "fingerprint": self.fingerprint.to_map(),
            "evidence": None if self.evidence is None else self.evidence.to_map(),
        }


class Registry:
    """The recipes of one gateway, by their digests: under another name a recipe is the same. `known` are those that it
    begins with."""

    def __init__(self, known: Iterable[RecipeStatus] = ()) -> None:
        self._known = {status.fingerprint.key: status for status in known if status.may_certify}

    def register(self, identity: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        """Make it known. One that is certified stays so."""
        fingerprint = fingerprint_of(identity)
        return self._known.setdefault(fingerprint.key, RecipeStatus("dark", fingerprint))

    def status(self, identity: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        fingerprint = fingerprint_of(identity)
        return self._known.get(fingerprint.key) or RecipeStatus("unknown", fingerprint)

    def certify(self, identity: ShardIdentity | CompatibilityFingerprint, evidence: ForwardEvidence) -> RecipeStatus:
        """Take a recipe out of the dark. Raises RecipeNotCertified for evidence that shows nothing, or that is of a
        model with another number of layers."""
        fingerprint = fingerprint_of(identity)
        status = certified(identity, evidence)
        self._known[fingerprint.key] = status
        return status

    def require_serving(self, identity: ShardIdentity | CompatibilityFingerprint) -> RecipeStatus:
        """Raises RecipeNotCertified for a recipe that is unknown or dark."""
        status = self.status(identity)
        if not status.may_serve:
            raise RecipeNotCertified(
                f"recipe {shown(status.fingerprint.recipe_id)}: {status.status}, expected certified: {status.detail}"
            )
        return status

    @property
    def known(self) -> tuple[RecipeStatus, ...]:
        return tuple(self._known.values())

    def to_map(self) -> dict[str, Any]:
        """The JSON form: of dark ones the fingerprint, of certified ones also what certified them."""
        known = self.known
        return {
            "schema_version": SCHEMA_VERSION,
            "dark": [status.fingerprint.to_map() for status in known if not status.may_serve],
            "certified": [status.to_map() for status in known if status.may_serve],
        }


def certified(identity: ShardIdentity | CompatibilityFingerprint, evidence: ForwardEvidence) -> RecipeStatus:
    """The status that `evidence` gives a recipe. Raises RecipeNotCertified."""
    fingerprint = fingerprint_of(identity)
    rejection = evidence.rejection()
    why = None if rejection is None else f"{rejection.reason}: {rejection.detail}"
    if why is None and isinstance(identity, ShardIdentity) and identity.artifact.layer_count != evidence.layer_count:
        layers = identity.artifact.layer_count
        why = f"coverage: the evidence is of a model of {evidence.layer_count} layers, expected {layers}"
    if why is not None:
        raise RecipeNotCertified(f"recipe {shown(fingerprint.recipe_id)}: this evidence certifies nothing: {why}")
    return RecipeStatus("certified", fingerprint, evidence)


def fingerprint_of(identity: ShardIdentity | CompatibilityFingerprint) -> CompatibilityFingerprint:
    return identity.fingerprint if isinstance(identity, ShardIdentity) else identity
