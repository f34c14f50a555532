"""The output commitment: made as the format says, and bound to every one of its inputs."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3

from mesh.errors import SchemaError
from mesh.schema.commitment import opening, opening_key, output_commitment
from tests.schema.samples import digest

SERVE = bytes(range(16))
IDS = [5, 7, 2**32 - 1]


def test_opening_key_is_derived_from_the_signing_seed():
    assert opening_key(digest(1)) == blake3(digest(1), derive_key_context="mesh/1 opening-key").digest()


def test_opening_is_keyed_over_request_and_serve():
    key = opening_key(digest(1))
    made = opening(key, digest(2), SERVE)
    assert made == blake3(digest(2) + SERVE, key=key).digest()
    assert made != opening(key, digest(2), bytes(16))
    assert made != opening(key, digest(3), SERVE)
    assert made != opening(opening_key(digest(9)), digest(2), SERVE)


def test_commitment_is_over_its_five_parts():
    data = digest(1) + digest(2) + digest(3) + struct.pack("<Q", 3) + struct.pack("<3I", *IDS)
    expected = blake3(data, derive_key_context="mesh/1 output-commitment").digest()
    assert output_commitment(digest(1), digest(2), digest(3), IDS) == expected


def test_commitment_binds_every_part():
    made = {
        output_commitment(digest(1), digest(2), digest(3), IDS),
        output_commitment(digest(9), digest(2), digest(3), IDS),
        output_commitment(digest(1), digest(9), digest(3), IDS),
        output_commitment(digest(1), digest(2), digest(9), IDS),
        output_commitment(digest(1), digest(2), digest(3), IDS[:2]),
        output_commitment(digest(1), digest(2), digest(3), [*IDS, 0]),
        output_commitment(digest(1), digest(2), digest(3), [7, 5, 2**32 - 1]),
        output_commitment(digest(1), digest(2), digest(3), []),
    }
    assert len(made) == 8


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_parts_have_one_size(size):
    short, full = bytes(size), digest(1)
    with pytest.raises(SchemaError, match="signing seed"):
        opening_key(short)
    with pytest.raises(SchemaError, match="opening key"):
        opening(short, full, SERVE)
    with pytest.raises(SchemaError, match="request id"):
        opening(full, short, SERVE)
    with pytest.raises(SchemaError, match="serve id"):
        opening(full, full, bytes(size + 1))
    with pytest.raises(SchemaError, match="opening"):
        output_commitment(short, full, full, IDS)
    with pytest.raises(SchemaError, match="request id"):
        output_commitment(full, short, full, IDS)
    with pytest.raises(SchemaError, match="payload digest"):
        output_commitment(full, full, short, IDS)


@pytest.mark.parametrize("ids", [[-1], [2**32], [0.5], ["a"]], ids=repr)
def test_ids_are_32_bits(ids):
    with pytest.raises(SchemaError, match="token ids"):
        output_commitment(digest(1), digest(2), digest(3), ids)
