"""Values as JSON, for reading: never hashed, never signed, never read back.

Digests and keys have their text forms, other byte strings are hex, and integers that a double (and so JavaScript)
cannot hold exactly are decimal strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.value import Value

if TYPE_CHECKING:
    from mesh.schema.envelope import Sealed

JSON_SAFE_INT = 2**53 - 1

# 32-byte strings that are no content id.
_HEX_FIELDS = frozenset(("output_commitment", "opening", "nonce", "payload", "output"))


def json_bytes(value: Any) -> bytes:
    """Maps, lists, text and numbers as JSON in one line of UTF-8."""
    return msgspec.json.encode(value)


def sealed_view(sealed: Sealed) -> dict[str, Any]:
    """A checked envelope: `receipt_id` and `receipt`, or `checkpoint_id` and `checkpoint`, marked as a view."""
    what = sealed.value.what()
    return {"view_of": "application/cose", f"{what}_id": sealed.id.text, what: value_view(sealed.value)}


def settings_view(digest: ContentId, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A settings document, marked likewise."""
    return {"view_of": "application/cbor", "digest": digest.text, "settings": view(settings)}


def route_view(digest: ContentId, route: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a route of shards, marked likewise."""
    return {"view_of": "application/cbor", "digest": digest.text, "route": view(route)}


def value_view(value: Value) -> dict[str, Any]:
    """The fields that are there."""
    return {name: view(item, name) for name, item in value.to_map().items()}


def view(item: Any, name: str = "") -> Any:
    """One canonical value, `name` being the field that holds it."""
    if isinstance(item, (str, bool)):
        return item
    if isinstance(item, int):
        return int(item) if -JSON_SAFE_INT <= item <= JSON_SAFE_INT else str(item)
    if isinstance(item, Mapping):
        return {key: view(each, key) for key, each in item.items()}
    if isinstance(item, (list, tuple)):
        return [view(each, name) for each in item]
    if not isinstance(item, bytes):
        return item
    # A settings document may call anything so.
    if name == "steward" and len(item) == 32:
        return steward_text(item)
    if name == "serve_id" and len(item) == 16:
        return serve_id_text(item)
    return item.hex() if name in _HEX_FIELDS or len(item) != 32 else ContentId(item).text
