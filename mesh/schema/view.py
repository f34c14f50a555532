"""Values as JSON, for reading: never hashed, never signed, never read back.

Digests and keys have their text forms, other byte strings are hex, and integers that a double (and so JavaScript)
cannot hold exactly are decimal strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.value import Value

JSON_SAFE_INT = 2**53 - 1

# 32-byte strings that are no content id.
_HEX_FIELDS = frozenset(("output_commitment", "opening", "nonce", "payload", "output"))

# Digests of identities, which are SHA-256; of a caveat, those are all that is no text.
_SHA256_FIELDS = frozenset(("model_artifact_digest", "runtime_recipe_digest", "recipe-in"))


def value_view(value: Value) -> dict[str, Any]:
    """The fields that are there."""
    return {name: view(item, name) for name, item in value.to_map().items()}


def view(item: Any, name: str = "") -> Any:
    """One canonical value, `name` being the field that holds it."""
    if isinstance(item, bool):
        return item
    if isinstance(item, int):
        return int(item) if -JSON_SAFE_INT <= item <= JSON_SAFE_INT else str(item)
    if isinstance(item, Mapping):
        return {key: view(each, key) for key, each in item.items()}
    if isinstance(item, (list, tuple)):
        return [view(each, name) for each in item]
    if not isinstance(item, bytes):
        return item
    if name == "steward":
        return steward_text(item)
    if name == "serve_id":
        return serve_id_text(item)
    if name in _SHA256_FIELDS and len(item) == 32:
        return f"sha256:{item.hex()}"
    return item.hex() if name in _HEX_FIELDS or len(item) != 32 else ContentId(item).text
