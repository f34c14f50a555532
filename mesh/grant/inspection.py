"""A grant for people: what its chain says, without the secret."""

from __future__ import annotations

from typing import Any

from mesh.grant.caveats import CAVEATS
from mesh.grant.chain import Chain
from mesh.grant.decision import caveat_view
from mesh.schema.ids import steward_text
from mesh.schema.view import view


def chain_view(chain: Chain) -> dict[str, Any]:
    """As JSON: `open` says whether its bearer can still narrow it."""
    return {
        "grant_id": chain.id.text,
        "issuer": steward_text(chain.issuer),
        "open": chain.secret is not None,
        "blocks": [
            {
                "block_id": block.id.text,
                "signer": steward_text(block.signer),
                "caveats": {
                    name: caveat_view(name, stated) if name in CAVEATS else view(stated)
                    for name, stated in block.value.caveats.items()
                },
            }
            for block in chain.blocks
        ],
    }
