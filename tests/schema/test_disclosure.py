"""Disclosures and settings documents: open maps of closed types."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3

from mesh.errors import EncodingError, MeshError, SchemaError
from mesh.schema.disclosure import Disclosure, settings_digest
from mesh.schema.limits import MAX_DISCLOSURE_BYTES, MAX_SETTINGS_BYTES
from tests.schema import handmade, samples


def made(**changes: Any) -> Disclosure:
    return Disclosure.from_map({**samples.disclosure(), **changes})


def test_disclosure_goes_to_bytes_and_back():
    value = made()
    assert Disclosure.from_bytes(value.to_cbor()) == value
    assert value.payload_ids == [1, 2**32 - 1]
    assert value.output_ids == [2]
    assert value.to_cbor() == handmade.item(samples.disclosure())


def test_output_and_prompt_may_be_left_out():
    fields = samples.disclosure()
    del fields["output"], fields["prompt"]
    value = Disclosure.from_map(fields)
    assert (value.output_ids, value.prompt) == (None, None)
    assert Disclosure.from_bytes(value.to_cbor()) == value


def test_no_output_is_not_an_empty_output():
    empty = made(output=b"", prompt="")
    assert empty.output_ids == []
    again = Disclosure.from_bytes(empty.to_cbor())
    assert (again.output, again.prompt) == (b"", "")


@pytest.mark.parametrize("name", ["payload", "output"])
def test_ids_are_whole(name):
    with pytest.raises(SchemaError, match=f"{name}: 3 bytes, not a multiple of 4"):
        made(**{name: b"abc"})
    with pytest.raises(SchemaError, match="not a multiple of 4"):
        Disclosure.from_bytes(handmade.item({**samples.disclosure(), name: b"abcde"}))


@pytest.mark.parametrize(
    "settings", [{"a": None}, {"a": 0.5}, {"a": {"b": [None]}}, {"a": 2**64}, {"a": "\ud800"}, {"a": {1: 2}}], ids=ascii
)
def test_settings_hold_payload_types_alone(settings):
    with pytest.raises(EncodingError):
        made(settings=settings)
    with pytest.raises(EncodingError):
        settings_digest(settings)


@pytest.mark.parametrize("settings", [{1: 2}, {b"a": 1}, [], None, "a", 1], ids=repr)
def test_settings_are_a_map_with_text_keys(settings):
    with pytest.raises(SchemaError, match="settings"):
        made(settings=settings)


def test_settings_keys_are_sorted_when_encoded():
    value = made(settings={"zz": 1, "b": {"y": 1, "x": 2}})
    assert value.to_cbor() == handmade.item({**samples.disclosure(), "settings": {"b": {"x": 2, "y": 1}, "zz": 1}})
    unsorted = value.to_cbor().replace(b"\xa2\x61x\x02\x61y\x01", b"\xa2\x61y\x01\x61x\x02")
    assert len(unsorted) == len(value.to_cbor())
    with pytest.raises(EncodingError, match="order"):
        Disclosure.from_bytes(unsorted)


def test_every_other_spelling_of_a_disclosure_is_refused():
    for other in handmade.spellings(samples.disclosure()):
        with pytest.raises(EncodingError):
            Disclosure.from_bytes(other)


def test_settings_digest_does_not_depend_on_the_order():
    assert settings_digest({"b": 1, "a": 2}) == settings_digest({"a": 2, "b": 1})
    data = handmade.item({"a": 2, "b": 1})
    assert settings_digest({"b": 1, "a": 2}) == blake3(data, derive_key_context="mesh/1 settings").digest()


def test_settings_have_a_limit():
    longest = {"a": bytes(MAX_SETTINGS_BYTES - 6)}
    assert settings_digest(longest)
    with pytest.raises(SchemaError, match="at most"):
        settings_digest({"a": bytes(MAX_SETTINGS_BYTES - 5)})
    with pytest.raises(SchemaError, match="at most"):
        made(settings={"a": bytes(MAX_SETTINGS_BYTES)})


def test_disclosures_have_a_limit():
    with pytest.raises(MeshError, match="too long"):
        Disclosure.from_bytes(bytes(MAX_DISCLOSURE_BYTES + 1))


def test_deep_settings_are_refused_in_one_line():
    deep: dict[str, Any] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    with pytest.raises(MeshError) as caught:
        made(settings=deep)
    assert "\n" not in str(caught.value)
    while deep:  # taken apart by hand: a nest this deep should not be left to the interpreter
        deep = deep.pop("a", {})
