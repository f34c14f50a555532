"""What two peers compare: two digests, and labels that tell a person what they were made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from mesh.identity.fields import check_hex64, check_object, check_text
from mesh.identity.recipe import LABELS

DIGESTS = ("model_artifact_digest", "runtime_recipe_digest")


@dataclass(frozen=True, slots=True)
class CompatibilityFingerprint:
    """Equal digests mean the same numbers; labels do not count. Raises SchemaError."""

    model_artifact_digest: str
    runtime_recipe_digest: str
    recipe_id: str
    recipe_version: str
    catalogue_version: str

    def __post_init__(self) -> None:
        for name in DIGESTS:
            check_hex64(getattr(self, name), f"fingerprint.{name}")
        for name in LABELS:
            check_text(getattr(self, name), f"fingerprint.{name}")

    @property
    def key(self) -> tuple[str, str]:
        return (self.model_artifact_digest, self.runtime_recipe_digest)

    def matches(self, other: CompatibilityFingerprint) -> bool:
        return self.key == other.key

    def to_map(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*DIGESTS, *LABELS)}

    @classmethod
    def from_map(cls, value: object) -> Self:
        return cls(**check_object(value, "fingerprint", (*DIGESTS, *LABELS)))
