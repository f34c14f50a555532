"""Digests that say what they commit to, and the one text form of each name."""

from __future__ import annotations

import uuid

import pytest
from blake3 import blake3

from mesh.errors import EncodingError, SchemaError
from mesh.schema.ids import (
    KINDS,
    RESERVED_KINDS,
    ContentId,
    serve_id_from,
    serve_id_from_text,
    serve_id_text,
    steward_from_text,
    steward_text,
)

# `b3sum` of no bytes and of "abc", from BLAKE3's own test vectors.
EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
ABC = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"


def test_of_bytes_is_what_b3sum_prints():
    assert ContentId.of_bytes(b"").hex() == EMPTY
    assert ContentId.of_bytes(b"abc").text == "b3:" + ABC


@pytest.mark.parametrize("kind", KINDS)
def test_of_derives_from_its_kind_over_canonical_bytes(kind):
    value, data = {"t": 17, "p": 8}, bytes.fromhex("a2617008617411")
    assert ContentId.of(kind, value) == blake3(data, derive_key_context=f"mesh/1 {kind}").digest()
    assert ContentId.of_canonical(kind, data) == ContentId.of(kind, value)


def test_a_digest_means_nothing_under_another_kind():
    assert len({ContentId.of(kind, {}) for kind in KINDS} | {ContentId.of_bytes(b"\xa0")}) == len(KINDS) + 1


def test_ids_do_not_depend_on_those_made_before():
    first = ContentId.of("receipt", {"a": 1})
    ContentId.of("receipt", {"b": 2})
    assert ContentId.of("receipt", {"a": 1}) == first


@pytest.mark.parametrize("kind", [*RESERVED_KINDS, "", "Receipt", "mesh/1 receipt", "grant"])
def test_kinds_are_a_closed_list(kind):
    with pytest.raises(SchemaError, match="unknown kind"):
        ContentId.of(kind, {})
    assert kind not in KINDS


def test_of_refuses_what_has_no_encoding():
    with pytest.raises(EncodingError):
        ContentId.of("settings", {"a": 0.5})


def test_text_goes_there_and_back():
    made = ContentId.of_bytes(b"abc")
    assert ContentId.from_text(made.text) == made == bytes.fromhex(ABC)
    assert str(made) == made.text
    assert repr(made) == f"ContentId('b3:{ABC}')"
    assert isinstance(made, bytes)


@pytest.mark.parametrize(
    "text",
    ["", "b3:", ABC, "b3:" + ABC.upper(), "B3:" + ABC, "b3:" + ABC[:-1], "b3:" + ABC + "0", "b3:" + ABC + "\n",
     " b3:" + ABC, "b3: " + ABC[1:], "sha256:" + ABC, "b3:b3:" + ABC, "b3:" + "٠" * 64,
     "b3:" + ABC[:-2] + "0x", "b3:\ud800"],
    ids=ascii,
)  # fmt: skip
def test_content_ids_have_one_text_form(text):
    with pytest.raises(SchemaError, match="b3:<64 lower-case hex>"):
        ContentId.from_text(text)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_ids_and_stewards_are_32_bytes(size):
    with pytest.raises(SchemaError, match=f"{size} bytes, expected 32"):
        ContentId(bytes(size))
    with pytest.raises(SchemaError, match=f"{size} bytes, expected 32"):
        steward_text(bytes(size))


def test_steward_text_goes_there_and_back():
    assert steward_text(bytes(range(32))) == "ed25519:" + bytes(range(32)).hex()
    assert steward_from_text(steward_text(bytes(range(32)))) == bytes(range(32))


@pytest.mark.parametrize("text", ["", ABC, "b3:" + ABC, "ed25519:" + ABC.upper(), "ed25519:" + ABC + "\n", "ed25519:0"])
def test_stewards_have_one_text_form(text):
    with pytest.raises(SchemaError, match="ed25519:<64 lower-case hex>"):
        steward_from_text(text)


def test_serve_ids_are_version_7_uuids():
    made = serve_id_from(0x0123456789AB, b"\xff" * 10)
    assert made.hex() == "0123456789ab7fffbfffffffffffffff"
    assert uuid.UUID(bytes=made).version == 7
    assert uuid.UUID(bytes=made).variant == uuid.RFC_4122
    assert serve_id_from(0x0123456789AB, bytes(10)).hex() == "0123456789ab70008000000000000000"


def test_serve_ids_sort_by_time():
    made = [serve_id_from(ms, bytes([255 - ms]) * 10) for ms in range(1, 200)]
    assert made == sorted(made)
    assert serve_id_from(2**48 + 5, bytes(10)) == serve_id_from(5, bytes(10))


@pytest.mark.parametrize("size", [0, 9, 11])
def test_serve_ids_take_ten_random_bytes(size):
    with pytest.raises(SchemaError, match="expected 10"):
        serve_id_from(0, bytes(size))


def test_serve_id_text_goes_there_and_back():
    made = serve_id_from(1_790_000_000_000, bytes(range(10)))
    assert serve_id_from_text(serve_id_text(made)) == made
    with pytest.raises(SchemaError, match="expected 16"):
        serve_id_text(bytes(15))


@pytest.mark.parametrize(
    "text",
    ["", "0", "019a0d0c-b180-7001-8203-04050607080", "019A0D0C-B180-7001-8203-040506070809",
     "{019a0d0c-b180-7001-8203-040506070809}", "urn:uuid:019a0d0c-b180-7001-8203-040506070809",
     "019a0d0cb18070018203040506070809", "019a0d0c-b180-7001-8203-040506070809\n", "\ud800" * 36],
    ids=ascii,
)  # fmt: skip
def test_serve_ids_have_one_text_form(text):
    with pytest.raises(SchemaError, match="lower-case UUID"):
        serve_id_from_text(text)
