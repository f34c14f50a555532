"""What one host is to a route: an artifact, a recipe, and the layers that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from mesh.errors import FingerprintError, LayerError, SchemaError
from mesh.identity.artifact import ArtifactFields, ArtifactIdentity
from mesh.identity.document import parse_document
from mesh.identity.fields import check_integer, check_object
from mesh.identity.fingerprint import DIGESTS, CompatibilityFingerprint
from mesh.identity.recipe import RecipeFields, RuntimeRecipe

SCHEMA_VERSION: Final = 1  # of the JSON form

_REQUIRED = ("schema_version", "artifact", "recipe", "shard_start", "shard_end")


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """`shard_start` counts, `shard_end` does not. The layers are no part of the fingerprint: hosts of one route have
    different ones, and all of them the same fingerprint. Raises SchemaError, and LayerError for layers that are not in
    the artifact at hand."""

    artifact: ArtifactIdentity
    recipe: RuntimeRecipe
    shard_start: int
    shard_end: int

    def __post_init__(self) -> None:
        start, end = self.shard_start, self.shard_end
        check_integer(start, "shard_start", 0)
        check_integer(end, "shard_end", 1)
        if end <= start:
            raise LayerError(f"shard_end: {end}, expected more than shard_start {start}: no layers compute nothing")
        if end > self.artifact.layer_count:
            raise LayerError(f"shard_end: {end}, expected at most the artifact's {self.artifact.layer_count} layers")
        held = self.artifact.derived_from
        if held is not None and not held.covers(start, end):
            raise LayerError(
                f"shard_start, shard_end: layers {start} to {end}, expected within {held.shard_start} to "
                f"{held.shard_end}, which are all that the cut artifact holds"
            )

    @property
    def fingerprint(self) -> CompatibilityFingerprint:
        """Always derived, never taken from anybody's word."""
        recipe = self.recipe
        return CompatibilityFingerprint(
            self.artifact.model_artifact_digest, recipe.runtime_recipe_digest, recipe.recipe_id, recipe.recipe_version,
            recipe.catalogue_version,
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        """Whether it computes every layer by itself."""
        return (self.shard_start, self.shard_end) == (0, self.artifact.layer_count)

    def to_map(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schema_version": SCHEMA_VERSION,
            "artifact": self.artifact.to_map(),
            "recipe": self.recipe.to_map(),
            "shard_start": self.shard_start,
            "shard_end": self.shard_end,
            "fingerprint": self.fingerprint.to_map(),
        }

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises EncodingError for bytes that are no JSON text as it may be here, else as `from_map`."""
        return cls.from_map(parse_document(data, "identity"))

    @classmethod
    def from_map(cls, value: object) -> Self:
        """The steps of SPEC.md, section Identity, in their order: the first fault is raised, as SchemaError,
        MovingReference, LayerError or FingerprintError."""
        # looked at first: what another version holds is not for this one to judge
        version = value.get("schema_version", SCHEMA_VERSION) if isinstance(value, Mapping) else SCHEMA_VERSION
        if check_integer(version, "schema_version", 0) != SCHEMA_VERSION:
            raise SchemaError(f"schema_version: {version}, expected {SCHEMA_VERSION}")
        fields = check_object(value, "identity", _REQUIRED, ("fingerprint",))
        artifact, recipe = ArtifactFields.of(fields["artifact"]), RecipeFields.of(fields["recipe"])
        start = check_integer(fields["shard_start"], "shard_start", 0)
        end = check_integer(fields["shard_end"], "shard_end", 1)
        stated = fields.get("fingerprint")
        declared = None if stated is None else CompatibilityFingerprint.from_map(stated)
        artifact.check_pins()
        recipe.check_pins()
        identity = cls(artifact.made(), recipe.made(), start, end)
        if declared is not None:
            identity.check_declared(declared)
        return identity

    def check_declared(self, declared: CompatibilityFingerprint) -> None:
        """Raises FingerprintError naming the digests that are not those of this identity: a fingerprint follows from
        an identity and is nothing that one may claim."""
        derived = self.fingerprint
        for name in DIGESTS:
            said, found = getattr(declared, name), getattr(derived, name)
            if said != found:
                raise FingerprintError(f"fingerprint.{name}: {said}, expected {found}, which follows from the identity")
