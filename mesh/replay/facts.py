"""Whether the replayer's engine is the one that the receipt names: what two machines must agree on before their
tokens may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mesh.engine.protocol import ServingEngine, blueprint_of, identity_of
from mesh.errors import Invalid
from mesh.replay.verdict import Reason
from mesh.schema.disclosure import settings_digest
from mesh.schema.ids import ContentId
from mesh.schema.receipt import EngineBlock

_TOLD_MAX = 8  # differing settings named in a verdict


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One side of the comparison. None is a fact too: absent on one side differs."""

    backend_id: str
    recipe_id: str
    settings_digest: bytes
    weights_digest: bytes | None = None
    blueprint_id: bytes | None = None
    runtime_recipe_digest: bytes | None = None

    @classmethod
    def of_block(cls, block: EngineBlock) -> EngineFacts:
        return cls(
            backend_id=block.backend_id,
            recipe_id=block.recipe_id,
            settings_digest=block.settings_digest,
            weights_digest=block.weights_digest,
            blueprint_id=block.blueprint_id,
            runtime_recipe_digest=block.runtime_recipe_digest,
        )

    @classmethod
    def of_engine(cls, engine: ServingEngine) -> EngineFacts:
        identity = identity_of(engine)
        return cls(
            backend_id=engine.backend_id,
            recipe_id=engine.recipe_id,
            settings_digest=settings_digest(dict(engine.settings)),
            weights_digest=engine.weights_digest,
            blueprint_id=blueprint_of(engine),
            runtime_recipe_digest=None if identity is None else bytes.fromhex(identity.recipe.runtime_recipe_digest),
        )


@dataclass(frozen=True, slots=True)
class Other:
    """The first fact that differs."""

    reason: Reason
    field: str
    detail: str


def first_other(receipt: EngineFacts, here: EngineFacts) -> Other | None:
    """In this order: backend, recipe, weights, blueprint, settings."""
    if receipt.backend_id != here.backend_id:
        return _other("other-backend", "backend_id", receipt, here)
    if receipt.runtime_recipe_digest is not None and here.runtime_recipe_digest is not None:
        if receipt.runtime_recipe_digest != here.runtime_recipe_digest:
            return _other("other-recipe", "runtime_recipe_digest", receipt, here)
    elif receipt.recipe_id != here.recipe_id:
        return _other("other-recipe", "recipe_id", receipt, here)
    if receipt.weights_digest != here.weights_digest:
        return _other("other-weights", "weights_digest", receipt, here)
    if receipt.blueprint_id != here.blueprint_id:
        return _other("other-blueprint", "blueprint_id", receipt, here)
    if receipt.settings_digest != here.settings_digest:
        return _other("other-settings", "settings_digest", receipt, here)
    return None


def settings_detail(digest: bytes, disclosed: dict[str, Any], here: Mapping[str, Any]) -> str | None:
    """Which settings differ, in words, or None where the disclosed document is not the one that the receipt names.

    That is all the disclosed document is for. The receipt is compared by its digest, so a wrong document can neither
    help nor harm a serve, and nothing is concluded from it.
    """
    return _differences(disclosed, here) if _is_document(digest, disclosed) else None


def recipe_detail(digest: bytes, disclosed: dict[str, Any], here: Mapping[str, Any]) -> str | None:
    """Which axes of the runtime recipe differ, from what two settings documents say of them; None where they do not, or
    where the disclosed one is not the one that the receipt names."""
    theirs, ours = disclosed.get("recipe"), here.get("recipe")
    if not isinstance(theirs, dict) or not isinstance(ours, dict) or not _is_document(digest, disclosed):
        return None
    return _differences(theirs, ours) or None


def _is_document(digest: bytes, disclosed: dict[str, Any]) -> bool:
    try:
        return settings_digest(disclosed) == digest
    except Invalid:
        return False


def _differences(disclosed: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    absent = object()
    names = [n for n in sorted({*disclosed, *here}) if disclosed.get(n, absent) != here.get(n, absent)]
    told = [
        f"{_printable(n)}: the receipt has {_setting(disclosed, n)}, this engine {_setting(here, n)}" for n in names
    ]
    more = len(told) - _TOLD_MAX
    return "; ".join(told[:_TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")


def _setting(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name)
    return "none" if value is None else _text(value) if isinstance(value, bytes) else repr(value)


def _printable(name: str) -> str:
    # Settings are the steward's words, and this ends up in a terminal.
    return name if name.isprintable() else repr(name)


def _other(reason: Reason, field: str, receipt: EngineFacts, here: EngineFacts) -> Other:
    theirs, ours = getattr(receipt, field), getattr(here, field)
    return Other(reason, field, f"the receipt has {_text(theirs)}, this engine {_text(ours)}")


def _text(value: str | bytes | None) -> str:
    if isinstance(value, bytes):
        return ContentId(value).text if len(value) == 32 else value.hex()
    return value or "none"
