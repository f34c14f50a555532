"""Checked statements as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh.schema.view import value_view

if TYPE_CHECKING:
    from mesh.schema.envelope import Sealed


def sealed_view(sealed: Sealed) -> dict[str, Any]:
    """`receipt_id` and `receipt`, or `checkpoint_id` and `checkpoint`, marked as a view of the signed bytes."""
    what = sealed.value.what()
    return {"view_of": "application/cose", f"{what}_id": sealed.id.text, what: value_view(sealed.value)}
