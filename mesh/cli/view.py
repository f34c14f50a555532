"""Signed values as JSON, for reading: never hashed, never signed, never read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mesh.schema.ids import ContentId, serve_id_text, steward_text
from mesh.schema.value import Value

if TYPE_CHECKING:
    from mesh.schema.envelope import Sealed

# Bytes that are no content id; those not named here are told apart by their length.
_HEX_FIELDS = frozenset(("output_commitment", "opening", "nonce", "payload", "output"))


def sealed_view(sealed: Sealed) -> dict[str, Any]:
    """`receipt_id` and `receipt`, or `checkpoint_id` and `checkpoint`."""
    what = sealed.value.what()
    return {f"{what}_id": sealed.id.text, what: value_view(sealed.value)}


def value_view(value: Value) -> dict[str, Any]:
    """The fields that are there, bytes in the text form of what they name."""
    return {name: _plain(name, item) for name, item in value.to_map().items()}


def _plain(name: str, item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _plain(key, each) for key, each in item.items()}
    if isinstance(item, list):
        return [_plain(name, each) for each in item]
    if not isinstance(item, bytes):
        return item
    if name == "steward":
        return steward_text(item)
    if name == "serve_id":
        return serve_id_text(item)
    return item.hex() if name in _HEX_FIELDS or len(item) != 32 else ContentId(item).text
