"""Taking envelopes apart: the quick way for those as this package writes them, and the general one, agree."""

from __future__ import annotations

import pytest

from mesh.schema import cose

SIGNATURE = bytes(range(64))
SIZES = [24, 25, 80, 255, 256, 257, 1000]
PAYLOAD = b"\x17" * 100


def assembled(protected: bytes = bytes(60), payload: bytes = PAYLOAD, signature: bytes = SIGNATURE) -> bytes:
    return cose.assemble(protected, cose.NO_HEADER, payload, signature)


@pytest.mark.parametrize("size", SIZES)
def test_quick_way_finds_the_parts(size):
    one = bytes(index % 251 for index in range(size))
    for protected, payload in ((one, PAYLOAD), (bytes(60), one), (one, one)):
        parts = cose.split(assembled(protected, payload))
        assert parts == (protected, {}, payload, SIGNATURE)
        assert cose.take_apart(assembled(protected, payload)) == parts
        assert cose.signed_of(assembled(protected, payload), protected) == cose.to_be_signed(protected, payload)


def test_quick_way_finds_the_longest_payload_and_none_longer():
    parts = cose.split(assembled(payload=bytes(32_768)))
    assert parts is not None
    assert len(parts[2]) == 32_768
    assert cose.split(assembled(payload=bytes(32_769))) is None


def test_quick_way_leaves_everything_else_to_the_general_one():
    good = assembled()
    for data in (
        assembled(signature=bytes(63)),
        assembled(signature=bytes(65)),
        assembled(protected=bytes(23)),
        assembled(payload=bytes(23)),
        good[:-1],
        good + b"\x00",
        good.replace(b"\x58\x3c", b"\x59\x00\x3c", 1),
        good.replace(b"\xa0", b"\xa1\x00\x00", 1),
        good.replace(b"\xd2", b"\xd3", 1),
        b"",
        good[:2],
        good[:3],
    ):
        assert cose.split(data) is None


def test_heads_are_the_narrowest():
    for size, head in ((0, "40"), (23, "57"), (24, "5818"), (255, "58ff"), (256, "590100"), (65_535, "59ffff")):
        data = cose.to_be_signed(bytes(size), b"")
        assert data == b"\x84\x6aSignature1" + bytes.fromhex(head) + bytes(size) + b"\x40\x40"
    with pytest.raises(ValueError, match="range"):
        cose.to_be_signed(bytes(65_536), b"")
