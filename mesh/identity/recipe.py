"""How an artifact is executed: one field for everything that moves the numbers, none of them folded into another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from mesh.identity.canonical_json import domain_sha256
from mesh.identity.fields import check_integer, check_object, check_pin, check_text

RECIPE_DOMAIN = "meshnet.runtime-recipe.v1"

VERSION_AXES = ("boundary_schema_version", "protocol_schema_version")
RECIPE_AXES = (
    "weight_quantization",
    "activation_dtype",
    "compute_dtype",
    "kv_dtype",
    "kv_layout",
    "tokenizer_revision",
    "architecture_adapter",
    "backend_id",
    "runtime_version",
    *VERSION_AXES,
)
LABELS = ("recipe_id", "recipe_version", "catalogue_version")


def _check_axis(axis: str, value: object) -> None:
    if axis in VERSION_AXES:
        check_integer(value, f"recipe.{axis}", 1)
    else:
        check_text(value, f"recipe.{axis}")


@dataclass(frozen=True, slots=True)
class RuntimeRecipe:
    """The axes, and three labels for people that are not digested: a new name moves no number. This `recipe_id` is not
    a receipt's. Raises SchemaError, and MovingReference for a tokenizer revision that moves."""

    weight_quantization: str
    activation_dtype: str
    compute_dtype: str
    kv_dtype: str
    kv_layout: str
    tokenizer_revision: str
    architecture_adapter: str
    backend_id: str
    runtime_version: str
    boundary_schema_version: int
    protocol_schema_version: int
    recipe_id: str = "unnamed"
    recipe_version: str = "0"
    catalogue_version: str = "0"

    def __post_init__(self) -> None:
        for axis in RECIPE_AXES:
            _check_axis(axis, getattr(self, axis))
        for label in LABELS:
            check_text(getattr(self, label), f"recipe.{label}")
        check_pin(self.tokenizer_revision, "recipe.tokenizer_revision")

    @property
    def axes(self) -> dict[str, str | int]:
        """What is digested, each under its own name, so that two values that change places change the digest."""
        return {axis: getattr(self, axis) for axis in RECIPE_AXES}

    @property
    def runtime_recipe_digest(self) -> str:
        """64 hex digits."""
        return domain_sha256(RECIPE_DOMAIN, self.axes)

    def to_map(self) -> dict[str, Any]:
        return {**self.axes, **{label: getattr(self, label) for label in LABELS}}


@dataclass(frozen=True, slots=True)
class RecipeFields:
    """A recipe as a document states it, of the right shape; `made` holds it to its meaning."""

    fields: dict[str, Any]

    @classmethod
    def of(cls, value: object) -> Self:
        """Raises SchemaError. An axis that is not stated is not proven, so it has no default."""
        fields = check_object(value, "recipe", (*RECIPE_AXES, *LABELS))
        for axis in RECIPE_AXES:
            _check_axis(axis, fields[axis])
        for label in LABELS:
            check_text(fields[label], f"recipe.{label}")
        return cls(fields)

    def check_pins(self) -> None:
        check_pin(self.fields["tokenizer_revision"], "recipe.tokenizer_revision")

    def made(self) -> RuntimeRecipe:
        return RuntimeRecipe(**self.fields)
