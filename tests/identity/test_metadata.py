"""The pairs of a header: every kind read as it was written, and each bound where it lies."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ModelFileError
from mesh.identity.metadata import (
    MAX_KEY_BYTES,
    MAX_LISTED_STRINGS,
    MAX_STRING_BYTES,
    GgufArray,
    Metadata,
    read_metadata,
    shown,
)
from mesh.identity.reader import Reader
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    array,
    pair,
    string,
    value,
)

# Of each kind its name and values that no other kind of its width would read as the same.
KINDS: list[tuple[int, str, list[object]]] = [
    (U8, "u8", [0, 1, 2**8 - 1]),
    (I8, "i8", [-(2**7), -1, 2**7 - 1]),
    (U16, "u16", [0, 2**15, 2**16 - 1]),
    (I16, "i16", [-(2**15), -1, 2**15 - 1]),
    (U32, "u32", [0, 2**31, 2**32 - 1]),
    (I32, "i32", [-(2**31), -1, 2**31 - 1]),
    (U64, "u64", [0, 2**63, 2**64 - 1]),
    (I64, "i64", [-(2**63), -1, 2**63 - 1]),
    (F32, "f32", [-0.5, 1.5, 2.0**100]),
    (F64, "f64", [-0.5, 0.1, 2.0**1000]),
    (BOOL, "bool", [True, False, True]),
]
MOST = 2**63 - 1


def read(*pairs: bytes, count: int | None = None, after: bytes = b"") -> Metadata:
    reader = Reader(io.BytesIO(b"".join(pairs) + after), "m")
    metadata = read_metadata(reader, len(pairs) if count is None else count)
    assert reader.at == len(b"".join(pairs))
    return metadata


def refusal(*pairs: bytes) -> tuple[str, str | None, int | None]:
    with pytest.raises(ModelFileError) as caught:
        read(*pairs)
    return str(caught.value), caught.value.field, caught.value.offset


def fault(field: str, offset: int, said: str) -> tuple[str, str, int]:
    return f"m: {field} at byte {offset}: {said}", field, offset


def test_bounds_are_those_that_are_written_down() -> None:
    assert (MAX_KEY_BYTES, MAX_STRING_BYTES, MAX_LISTED_STRINGS) == (65_535, 16 << 20, 4_000_000)


@pytest.mark.parametrize(("kind", "name", "values"), KINDS)
def test_every_kind_is_read_as_it_was_written(kind: int, name: str, values: list[object]) -> None:
    metadata = read(*(pair(f"k{i}", kind, each) for i, each in enumerate(values)), array("all", kind, values))
    assert [metadata[f"k{i}"] for i in range(len(values))] == values
    assert [type(metadata[f"k{i}"]) for i in range(len(values))] == [type(each) for each in values]
    assert {metadata.kind(f"k{i}") for i in range(len(values))} == {name}
    listed = metadata.array("all")
    assert listed == GgufArray(name, len(values), b"".join(value(kind, each) for each in values))
    assert listed is not None
    assert listed.values() == values
    assert [type(each) for each in listed.values()] == [type(each) for each in values]
    assert metadata.kind("all") == "array"


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_strings_in_arrays_are_bytes_as_they_stand(texts: list[bytes]) -> None:
    listed = read(array("a", STRING, texts), pair("b", U8, 1)).array("a")
    assert listed is not None
    assert (listed.kind, listed.count, listed.values()) == ("string", len(texts), texts)


def test_pairs_keep_the_order_of_the_file() -> None:
    metadata = read(pair("z", U8, 1), pair("a", STRING, "é"), array("m", I32, []), after=b"rest")
    assert list(metadata) == ["z", "a", "m"]
    assert len(metadata) == 3
    assert dict(metadata) == {"z": 1, "a": "é", "m": GgufArray("i32", 0, b"")}
    assert [metadata.kind(key) for key in ("z", "a", "m", "absent")] == ["u8", "string", "array", None]
    assert len(read(pair("z", U8, 1), count=1)) == 1


def test_typed_readings_give_what_is_there_or_none() -> None:
    metadata = read(
        pair("n", U8, 7), pair("s", STRING, "x"), pair("b", BOOL, 0), array("a", U8, [1]), pair("f", F32, 1)
    )
    assert (metadata.integer("n"), metadata.text("s"), metadata.flag("b")) == (7, "x", False)
    assert metadata.array("a") == GgufArray("u8", 1, b"\1")
    for reading in (metadata.integer, metadata.text, metadata.flag, metadata.array):
        assert reading("absent") is None
    kinds = {"n": "u8", "s": "string", "b": "bool", "a": "array", "f": "f32"}
    for reading, wanted, own in (
        (metadata.integer, "integer", "n"),
        (metadata.text, "string", "s"),
        (metadata.flag, "boolean", "b"),
        (metadata.array, "array", "a"),
    ):
        for key in kinds.keys() - {own}:
            with pytest.raises(
                ModelFileError, match=rf"^m: {key} at byte \d+ is of kind {kinds[key]}, expected {wanted}$"
            ):
                reading(key)


@pytest.mark.parametrize(
    ("number", "minimum", "maximum", "within"),
    [(3, 3, 5, True), (5, 3, 5, True), (4, 3, 5, True), (2, 3, 5, False), (6, 3, 5, False), (3, 3, 3, True)],
)
def test_integer_is_within_its_bounds(number: int, minimum: int, maximum: int, within: bool) -> None:
    metadata = read(pair("n", U16, number))
    if within:
        assert metadata.integer("n", minimum=minimum, maximum=maximum) == number
    else:
        with pytest.raises(ModelFileError) as caught:
            metadata.integer("n", minimum=minimum, maximum=maximum)
        assert str(caught.value) == f"m: n at byte 13 is {number}, expected {minimum} to {maximum}"
        assert (caught.value.field, caught.value.offset) == ("n", 13)


def test_integer_is_of_63_bits_where_nothing_else_is_said() -> None:
    metadata = read(pair("most", U64, MOST), pair("more", U64, 2**63), pair("less", I64, -1), pair("none", U64, 0))
    assert (metadata.integer("most"), metadata.integer("none")) == (MOST, 0)
    for key, number in (("more", 2**63), ("less", -1)):
        with pytest.raises(ModelFileError, match=rf"{key} at byte \d+ is {number}, expected 0 to {MOST}$"):
            metadata.integer(key)


def test_fault_of_what_is_not_there_has_no_place() -> None:
    metadata = read(pair("n", U16, 1))
    absent, there = metadata.fault("a\nb", "missing"), metadata.fault("n", "odd")
    assert (str(absent), absent.field, absent.offset) == ("m: 'a\\nb' is missing", "a\nb", None)
    assert (str(there), there.field, there.offset) == ("m: n at byte 13 is odd", "n", 13)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a" * 80, "a" * 80),
        ("a" * 81, repr("a" * 80)),
        ("é b", "é b"),
        ("a\nb", "'a\\nb'"),
        ("\n" * 99, repr("\n" * 80)),
    ],
)
def test_name_is_shown_shortly_and_plainly(name: str, expected: str) -> None:
    assert shown(name) == expected


# Where the parts of the one pair `a` stand: its kind, its value, and in an array what comes behind the element kind.
KIND, VALUE, COUNT, ITEMS = 9, 13, 17, 25


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (string("a") + struct.pack("<I", 13), fault("a", KIND, "value kind 13, expected 0 to 12")),
        (string("a") + b"\xff" * 4, fault("a", KIND, "value kind 4294967295, expected 0 to 12")),
        (string("a") + b"\0\0\0", fault("kind of a", KIND, "4 bytes declared, file has 12 bytes")),
        (string("a\nb") + b"\0", fault("kind of 'a\\nb'", 11, "4 bytes declared, file has 12 bytes")),
        (pair("a", BOOL, 2), fault("a", VALUE, "boolean 2, expected 0 or 1")),
        (pair("a", BOOL, 255), fault("a", VALUE, "boolean 255, expected 0 or 1")),
        (pair("a", U32, 1)[:-1], fault("a", VALUE, "4 bytes declared, file has 16 bytes")),
        (pair("a", STRING, b"ok\xff"), fault("a", VALUE + 10, "not UTF-8: invalid start byte")),
        (
            string("a") + struct.pack("<IQ", STRING, MAX_STRING_BYTES + 1),
            fault("length of a", VALUE, "16777217, expected at most 16777216"),
        ),
        (
            string("a") + struct.pack("<IQ", STRING, MAX_STRING_BYTES),
            fault("a", VALUE + 8, "16777216 bytes declared, file has 21 bytes"),
        ),
        (
            string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 0),
            fault("a", VALUE, "array of arrays, which no engine reads"),
        ),
        (string("a") + struct.pack("<IIQ", ARRAY, 13, 0), fault("a", VALUE, "element kind 13, expected 0 to 12")),
        (
            string("a") + struct.pack("<II", ARRAY, 2**32 - 1),
            fault("a", VALUE, "element kind 4294967295, expected 0 to 12"),
        ),
        (
            string("a") + struct.pack("<I", ARRAY),
            fault("element kind of a", VALUE, "4 bytes declared, file has 13 bytes"),
        ),
        (array("a", BOOL, [1, 0, 2]), fault("a", VALUE, "booleans other than 0 and 1")),
        (array("a", BOOL, [1, 7, 0]), fault("a", VALUE, "booleans other than 0 and 1")),
        (array("a", U8, [1], count=27), fault("count of a", COUNT, "27, expected at most 26")),
        (array("a", U8, [1], count=26), fault("a", ITEMS, "26 bytes declared, file has 26 bytes")),
        (array("a", U16, [1], count=2), fault("a", ITEMS, "4 bytes declared, file has 27 bytes")),
        (array("a", STRING, [], count=4_000_001), fault("count of a", COUNT, "4000001, expected at most 4000000")),
        (array("a", STRING, [], count=4_000_000), fault("a", ITEMS, "32000000 bytes declared, file has 25 bytes")),
        (
            string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, MAX_STRING_BYTES + 1),
            fault("a[0]", ITEMS, "length 16777217, expected at most 16777216"),
        ),
        (
            string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, MAX_STRING_BYTES),
            fault("a[0]", ITEMS + 8, "16777216 bytes declared, file has 33 bytes"),
        ),
        (struct.pack("<Q", 65_536), fault("length of key 0", 0, "65536, expected at most 65535")),
        (struct.pack("<Q", 65_535), fault("key 0", 8, "65535 bytes declared, file has 8 bytes")),
    ],
)
def test_pair_that_is_wrong_is_refused_where_it_says_so(raw: bytes, expected: tuple[str, str, int]) -> None:
    assert refusal(raw) == expected


def test_every_pair_is_looked_at_in_its_turn() -> None:
    first = pair("a", U8, 1)
    assert refusal(first, pair("b", U8, 1), pair("a", U8, 2)) == fault("a", 28, "key given twice")
    assert refusal(first, string(b"\xff")) == fault("key 1", 22, "not UTF-8: invalid start byte")
    assert refusal(first, string("b") + b"\x0d\0\0\0") == fault("b", 23, "value kind 13, expected 0 to 12")
    assert refusal(first, pair("b", BOOL, 3)) == fault("b", 27, "boolean 3, expected 0 or 1")


def test_strings_of_all_arrays_are_counted_together() -> None:
    others = (array(name, kind, [0, 1]) for kind, name, _ in KINDS)
    before = array("a", STRING, ["x", "y", "z"]), *others, array("c", STRING, ["w"])
    at = len(b"".join(before))
    left = MAX_LISTED_STRINGS - 4
    over, full = array("d", STRING, [], count=left + 1), array("d", STRING, [], count=left)
    assert refusal(*before, over) == fault("count of d", at + COUNT, f"{left + 1}, expected at most {left}")
    (said, field, _) = refusal(*before, full)
    assert (field, f"{8 * left} bytes declared" in said) == ("d", True)
