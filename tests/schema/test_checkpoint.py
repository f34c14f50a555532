"""A checkpoint says how far a ledger reaches, and never two things at once."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.checkpoint import Checkpoint
from tests.schema import handmade, samples


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in samples.checkpoint().items() if name not in names}


def test_checkpoint_id_is_the_digest_of_the_payload():
    fields = samples.checkpoint()
    payload = handmade.item(fields)
    assert Checkpoint.from_map(fields).id == blake3(payload, derive_key_context="mesh/1 checkpoint").digest()


def test_an_empty_ledger_has_no_head():
    empty = {**without("head", "epoch", "epoch_seq"), "count": 0, "domains": []}
    assert Checkpoint.from_map(empty).to_map() == empty


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (without("head"), "head must be absent at count 0"),
        ({**samples.checkpoint(), "count": 0}, "head must be absent at count 0"),
        (without("epoch"), "come together"),
        (without("epoch_seq"), "come together"),
        (without("epoch", "epoch_seq"), "with any domain"),
        ({**samples.checkpoint(), "domains": samples.checkpoint()["domains"] * 2}, "each once"),
        ({**samples.checkpoint(), "v": "mesh/0"}, "v"),
        ({**samples.checkpoint(), "domains": [{"domain": "cpu"}]}, "domains"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_checkpoint_refuses(fields, fault):
    with pytest.raises(SchemaError, match=fault):
        Checkpoint.from_map(fields)


def test_domains_are_sorted():
    first = samples.checkpoint()["domains"][0]
    two = [{**first, "domain": name} for name in ("cpu", "gpu")]
    assert len(Checkpoint.from_map({**samples.checkpoint(), "domains": two}).domains) == 2
    with pytest.raises(SchemaError, match="sorted"):
        Checkpoint.from_map({**samples.checkpoint(), "domains": two[::-1]})
