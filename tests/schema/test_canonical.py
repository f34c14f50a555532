"""The one spelling of a value: bytes in hex against values, both ways, and everything that is close to it."""

from __future__ import annotations

import pytest

from mesh.errors import EncodingError
from mesh.schema import canonical
from mesh.schema.receipt import Receipt
from tests.schema import handmade, samples

LIMIT = 4096

GOOD = {
    "00": 0,
    "0b": 11,
    "17": 23,
    "1818": 24,
    "18ff": 255,
    "190100": 256,
    "1a00010000": 65536,
    "1b0000000100000000": 2**32,
    "1b0020000000000001": 9007199254740993,
    "1b7fffffffffffffff": 2**63 - 1,
    "1bffffffffffffffff": 2**64 - 1,
    "20": -1,
    "3863": -100,
    "3b7fffffffffffffff": -(2**63),
    "40": b"",
    "4101": b"\x01",
    "60": "",
    "63616263": "abc",
    "62c3a9": "é",
    "64f09f9982": "🙂",
    "6100": "\0",
    "f4": False,
    "f5": True,
    "80": [],
    "820102": [1, 2],
    "a0": {},
    "a2617008617411": {"p": 8, "t": 17},
    "a361620161630262616103": {"b": 1, "c": 2, "aa": 3},
}

BAD = {
    "1b000000000000000b": "wider head",
    "180b": "wider head",
    "1817": "wider head",
    "1900ff": "wider head",
    "1a0000ffff": "wider head",
    "1b00000000ffffffff": "wider head",
    "3800": "wider head",
    "5801ff": "wider head",
    "7803616263": "wider head",
    "980101": "wider head",
    "b801616101": "wider head",
    "a178016101": "wider head",
    "bf617411617008ff": "indefinite",
    "9f01ff": "indefinite",
    "5f4101ff": "indefinite",
    "7f61616162ff": "indefinite",
    "a2617411617008": "order",
    "a262616101616202": "order",
    "a16167a2617411617008": "order",
    "81a2617411617008": "order",
    "a263636170016363617009": "duplicate key",
    "a16167a2616d6161616d6162": "duplicate key",
    "a2616101616101": "duplicate key",
    "a101616f": "not text",
    "a201610af93c00610b": "duplicate key",  # 1 and 1.0: equal to Python
    "a2616101416102": "not text",  # "a" and h'61' stay two keys, and the second is refused
    "a1f500": "not text",
    "a1f600": "not text",
    "a1816101": "malformed|not text",
    "a1a000": "not text",
    "fb7ff8000000000001": "float",
    "f9fe00": "float",
    "f97e00": "float",
    "f97c00": "float",
    "f93c00": "float",
    "f98000": "float",
    "fa47c35000": "float",
    "fb3e7ad7f29abcaf48": "float",
    "a16161f93c00": "float",
    "c2410b": "tag",
    "c349010000000000000000": "tag",
    "c074323031332d30332d32315432303a30343a30305a": "tag",
    "c11a514b67b0": "tag",
    "c4820102": "tag",
    "c5820102": "tag",
    "d81c80": "tag",
    "d81d00": "tag",
    "d81c81d81d00": "tag",
    "d82363612b62": "tag",
    "d90102820101": "tag",
    "d9d9f700": "tag",
    "d63bff": "malformed",
    "d9ffff00": "tag",
    "dbffffffffffffffff00": "tag",
    "a16161c2410b": "tag",
    "f6": "null",
    "a16161f6": "null",
    "81f6": "null",
    "f7": "not allowed",
    "e0": "not allowed",
    "f3": "not allowed",
    "f8ff": "not allowed",
    "f818": "malformed",
    "f814": "malformed",
    "3bffffffffffffffff": "outside",
    "3b8000000000000000": "outside",
    "813b8000000000000000": "outside",
    "0101": "trailing",
    "a0a0": "trailing",
    "00ff": "trailing",
    "": "malformed",
    "18": "malformed",
    "1c": "malformed",
    "1f": "malformed",
    "3f": "malformed",
    "5e": "malformed",
    "6162ff": "trailing",
    "ff": "malformed",
    "41": "malformed",
    "6261": "malformed",
    "8101ff": "trailing",
    "8201": "malformed",
    "a1": "malformed",
    "a16161": "malformed",
    "62c328": "malformed",
    "61ff": "malformed",
    "62c0af": "malformed",
    "63eda080": "malformed",
    "64f4908080": "malformed",
    "fc": "malformed",
    "fd": "malformed",
    "fe": "malformed",
}


@pytest.mark.parametrize(("encoded", "value"), GOOD.items(), ids=list(GOOD))
def test_decode_and_encode_are_inverse_for(encoded, value):
    data = bytes.fromhex(encoded)
    decoded = canonical.decode(data, max_bytes=LIMIT)
    assert decoded == value
    assert type(decoded) is type(value)
    assert canonical.encode(value) == data == handmade.item(value)


@pytest.mark.parametrize(("encoded", "reason"), BAD.items(), ids=[key or "nothing" for key in BAD])
def test_decode_refuses(encoded, reason):
    with pytest.raises(EncodingError, match=reason):
        canonical.decode(bytes.fromhex(encoded), max_bytes=LIMIT)


@pytest.mark.parametrize("encoded", [key for key in BAD if key], ids=str)
def test_decode_refuses_it_at_any_depth(encoded):
    data = bytes.fromhex(encoded)
    for wrapped in (b"\x81" + data, b"\xa1\x61k" + data, b"\x81\xa1\x61k\x81" + data):
        with pytest.raises(EncodingError):
            canonical.decode(wrapped, max_bytes=LIMIT)


@pytest.mark.parametrize("encoded", [key for key in BAD if key], ids=str)
def test_values_refuse_it_as_a_field(encoded):
    fields = {name: handmade.item(value) for name, value in samples.receipt().items()}
    fields["seq"] = bytes.fromhex(encoded)
    pairs = sorted((handmade.text(name), value) for name, value in fields.items())
    with pytest.raises(EncodingError):
        Receipt.from_cbor(handmade.mapping(pairs), max_bytes=LIMIT)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.0,
        1e-07,
        -0.0,
        float("nan"),
        float("inf"),
        {1, 2},
        pytest.param(object(), id="object"),
        1j,
        {"a": None},
        [1.5],
        {"a": {"b": (None,)}},
    ],
    ids=repr,
)
def test_encode_refuses_what_has_no_encoding(value):
    with pytest.raises(EncodingError, match="no encoding"):
        canonical.encode(value)


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, 10**5000, -(10**5000)], ids=["2^64", "-2^63-1", "huge", "-huge"]
)
def test_encode_refuses_integers_out_of_range(value):
    with pytest.raises(EncodingError, match="outside"):
        canonical.encode({"a": [value]})


@pytest.mark.parametrize("key", [1, 1.0, b"a", True, None, ("a",)], ids=repr)
def test_encode_refuses_keys_that_are_not_text(key):
    with pytest.raises(EncodingError, match="not text"):
        canonical.encode({key: 1})


@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud800": 1}, {"a": {"b": "x\udc80"}}], ids=ascii)
def test_encode_refuses_half_a_surrogate_pair(value):
    with pytest.raises(EncodingError, match="unicode"):
        canonical.encode(value)


def test_encode_writes_subclasses_as_what_they_are():
    class Text(str):
        __slots__ = ()

    assert canonical.encode([Text("a"), bytearray(b"b"), (1,)]) == bytes.fromhex("83616141628101")


def test_map_keys_are_sorted_by_length_and_then_bytewise():
    keys = ["z", "aa", "é", "a", "b" * 24, "c" * 23, "", "b" * 255, "a" * 256, "🙂", "\uffff"]
    data = canonical.encode(dict.fromkeys(keys, 0))
    assert data == handmade.mapping((key, b"\0") for key in sorted(handmade.text(key) for key in keys))
    assert list(canonical.decode(data, max_bytes=LIMIT)) == sorted(keys, key=handmade.text)


def test_decode_is_as_strict_about_keys_met_before():
    ordered, other = bytes.fromhex("a2617008617411"), bytes.fromhex("a2617411617008")
    for _ in range(2):
        assert canonical.decode(ordered, max_bytes=LIMIT) == {"p": 8, "t": 17}
        with pytest.raises(EncodingError, match="order"):
            canonical.decode(other, max_bytes=LIMIT)


def test_decode_map_wants_a_map():
    assert canonical.decode_map(b"\xa0", max_bytes=LIMIT) == {}
    with pytest.raises(EncodingError, match="expected a map, got an array"):
        canonical.decode_map(b"\x80", max_bytes=LIMIT)
    with pytest.raises(EncodingError, match="expected a map, got an integer"):
        canonical.decode_map(b"\x01", max_bytes=LIMIT)


def test_decode_counts_bytes_before_it_reads_them():
    assert canonical.decode(b"\x42ab", max_bytes=3) == b"ab"
    with pytest.raises(EncodingError, match="too long: 3 bytes, at most 2"):
        canonical.decode(b"\x42ab", max_bytes=2)
    with pytest.raises(EncodingError, match="too long"):
        canonical.decode(b"\xff" * 100, max_bytes=99)


def test_every_other_spelling_of_a_receipt_is_refused():
    fields = samples.receipt()
    right = handmade.item(fields)
    assert Receipt.from_map(fields).to_cbor() == right == canonical.encode(fields)
    assert Receipt.from_cbor(right, max_bytes=LIMIT).to_map() == fields
    others = handmade.spellings(fields)
    assert len(others) > 400
    for other in [*others, right + b"\0", right + b"\xf6", b"\xd9\xd9\xf7" + right]:
        assert other != right
        with pytest.raises(EncodingError):
            Receipt.from_cbor(other, max_bytes=LIMIT)
        with pytest.raises(EncodingError):
            canonical.decode(other, max_bytes=LIMIT)


# Those that cbor2 gives a meaning of its own are among them: dates, sets, cycles, regular expressions, messages.
@pytest.mark.parametrize("tag", [*range(300), 1004, 43_000, 55_799])
def test_no_tag_is_given_a_meaning(tag):
    head = bytes((0xC0 | tag,)) if tag < 24 else bytes((0xD8, tag)) if tag < 256 else b"\xd9" + tag.to_bytes(2, "big")
    for content in (b"\x60", b"\x00", b"\x80"):
        with pytest.raises(EncodingError, match="a tag is not allowed in a payload"):
            canonical.decode(head + content, max_bytes=8)
