"""Which weights, in which architecture: the half of a fingerprint that says what is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from mesh.errors import LayerError
from mesh.identity.canonical_json import domain_sha256
from mesh.identity.fields import check_hex64, check_integer, check_object, check_pin, check_text, shown

ARTIFACT_DOMAIN = "meshnet.model-artifact.v1"

_BINDING = ("source_artifact_digest", "shard_start", "shard_end")
_ARTIFACT = ("artifact_id", "revision", "content_digest", "architecture", "architecture_digest", "layer_count")


@dataclass(frozen=True, slots=True)
class DerivativeBinding:
    """What a file that was cut from a model says of it: the digest of the whole that it came from, and the layers it
    holds, the first counted and the last not. Raises SchemaError, and LayerError for a cut without layers."""

    source_artifact_digest: str
    shard_start: int
    shard_end: int

    def __post_init__(self) -> None:
        check_hex64(self.source_artifact_digest, "artifact.derived_from.source_artifact_digest")
        check_integer(self.shard_start, "artifact.derived_from.shard_start", 0)
        check_integer(self.shard_end, "artifact.derived_from.shard_end", 1)
        if self.shard_end <= self.shard_start:
            raise LayerError(
                f"artifact.derived_from.shard_end: {self.shard_end}, expected more than shard_start "
                f"{self.shard_start}: a cut without layers proves nothing"
            )

    def covers(self, start: int, end: int) -> bool:
        return self.shard_start <= start and end <= self.shard_end

    def to_map(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _BINDING}


@dataclass(frozen=True, slots=True)
class ArtifactIdentity:
    """`content_digest` is of the bytes at hand: of the whole model, or of a cut, which then names in `derived_from` the
    whole that it was cut from. `artifact_id` and `revision` say where the bytes came from, and are not digested: the
    same bytes from elsewhere are the same artifact. Digests are 64 lower-case hex digits.

    Raises SchemaError for a field, MovingReference for a revision that moves, LayerError for a cut that contradicts
    the whole.
    """

    artifact_id: str
    revision: str
    content_digest: str
    architecture: str
    architecture_digest: str
    layer_count: int
    derived_from: DerivativeBinding | None = None

    def __post_init__(self) -> None:
        check_text(self.artifact_id, "artifact.artifact_id")
        check_text(self.revision, "artifact.revision")
        check_hex64(self.content_digest, "artifact.content_digest")
        check_text(self.architecture, "artifact.architecture")
        check_hex64(self.architecture_digest, "artifact.architecture_digest")
        check_integer(self.layer_count, "artifact.layer_count", 1)
        check_pin(self.revision, "artifact.revision")
        binding = self.derived_from
        if binding is None:
            return
        if binding.source_artifact_digest == self.content_digest:
            raise LayerError(
                f"artifact.derived_from.source_artifact_digest: {shown(self.content_digest)} is this artifact's own "
                "content_digest, expected another: nothing is cut from itself"
            )
        if binding.shard_end > self.layer_count:
            raise LayerError(
                f"artifact.derived_from.shard_end: {binding.shard_end}, expected at most the {self.layer_count} layers "
                "of the whole"
            )

    @property
    def source_digest(self) -> str:
        """Of the whole model, which is what the parts of a route have in common."""
        return self.content_digest if self.derived_from is None else self.derived_from.source_artifact_digest

    @property
    def model_artifact_digest(self) -> str:
        """64 hex digits: a cut has the digest of the whole."""
        body = {name: getattr(self, name) for name in ("architecture", "architecture_digest", "layer_count")}
        return domain_sha256(ARTIFACT_DOMAIN, {"source_digest": self.source_digest, **body})

    def to_map(self) -> dict[str, Any]:
        binding = self.derived_from
        fields = {name: getattr(self, name) for name in _ARTIFACT}
        return {**fields, "derived_from": None if binding is None else binding.to_map()}


@dataclass(frozen=True, slots=True)
class ArtifactFields:
    """An artifact as a document states it, of the right shape; `made` holds it to its meaning."""

    fields: dict[str, Any]
    binding: dict[str, Any] | None

    @classmethod
    def of(cls, value: object) -> Self:
        """Raises SchemaError."""
        fields = check_object(value, "artifact", _ARTIFACT, ("derived_from",))
        for name in ("artifact_id", "revision", "architecture"):
            check_text(fields[name], f"artifact.{name}")
        for name in ("content_digest", "architecture_digest"):
            check_hex64(fields[name], f"artifact.{name}")
        check_integer(fields["layer_count"], "artifact.layer_count", 1)
        stated = fields.pop("derived_from", None)
        if stated is None:
            return cls(fields, None)
        binding = check_object(stated, "artifact.derived_from", _BINDING)
        check_hex64(binding["source_artifact_digest"], "artifact.derived_from.source_artifact_digest")
        check_integer(binding["shard_start"], "artifact.derived_from.shard_start", 0)
        check_integer(binding["shard_end"], "artifact.derived_from.shard_end", 1)
        return cls(fields, binding)

    def check_pins(self) -> None:
        check_pin(self.fields["revision"], "artifact.revision")

    def made(self) -> ArtifactIdentity:
        binding = None if self.binding is None else DerivativeBinding(**self.binding)
        return ArtifactIdentity(**self.fields, derived_from=binding)
