"""The published tables of the format, what a strict reader refuses beyond them, and every value there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.blueprint import postcard as p
from mesh.blueprint import postcard_scalars as s
from mesh.errors import PostcardError


@dataclass(frozen=True)
class Pair:
    a: int
    b: bool


@dataclass(frozen=True)
class Empty:
    pass


PAIR = p.Struct(Pair, a=s.U16, b=s.BOOL)
EITHER = p.Enum(PAIR, p.Struct(Empty))

TABLE: list[tuple[p.Kind, Any, str]] = [
    (s.U16, 0, "00"), (s.U16, 127, "7f"), (s.U16, 128, "8001"), (s.U16, 16383, "ff7f"), (s.U16, 16384, "808001"),
    (s.U16, 16385, "818001"), (s.U16, 65535, "ffff03"),
    (s.I16, 0, "00"), (s.I16, -1, "01"), (s.I16, 1, "02"), (s.I16, 63, "7e"), (s.I16, -64, "7f"), (s.I16, 64, "8001"),
    (s.I16, -65, "8101"), (s.I16, 32767, "feff03"), (s.I16, -32768, "ffff03"),
    (s.F32, -32.005859375, "000600c2"), (s.F64, -32.005859375, "00000000c00040c0"),
    (s.U8, 255, "ff"), (s.I8, -1, "ff"), (s.I8, -128, "80"), (s.BOOL, True, "01"), (s.BOOL, False, "00"),
    (s.U32, 2**32 - 1, "ffffffff0f"), (s.U64, 2**64 - 1, "ffffffffffffffffff01"),
    (s.U128, 2**128 - 1, "ff" * 18 + "03"), (s.I128, -(2**127), "ff" * 18 + "03"),
    (s.Text(9), "héj", "0468c3a96a"), (s.CHAR, "é", "02c3a9"), (s.Bytes(9), b"\x01\x02", "020102"),
    (s.Fixed(3), b"abc", "616263"), (p.Option(s.U8), None, "00"), (p.Option(s.U8), 5, "0105"), (p.UNIT, (), ""),
    (p.Seq(s.U16, 9), (1, 128), "02018001"), (p.Tuple(s.U8, s.U16), (1, 128), "018001"),
    (p.Map(s.Text(9), s.U8, 9), {"b": 2, "aa": 3}, "02016202026161" + "03"),
    (PAIR, Pair(300, True), "ac0201"), (EITHER, Pair(1, False), "000100"), (EITHER, Empty(), "01"),
    (s.Words("a", "b"), "b", "01"),
]  # fmt: skip
REFUSED: list[tuple[p.Kind, str]] = [
    (s.U16, "80808000"), (s.U16, "ffff07"), (s.U16, "ffff8300"),
    # what the reference reader lets through
    (s.U16, "8000"), (s.U16, "808000"), (s.U16, "0000"), (s.U16, "80"), (s.U16, ""),
    (s.U32, "ffffffff1f"), (s.U64, "ffffffffffffffffff03"), (s.U128, "ff" * 18 + "07"), (s.I16, "ffff07"),
    (s.BOOL, "02"), (s.F32, "0000c07f"), (s.F32, "00000080"), (s.F64, "000000000000f87f"), (s.CHAR, "026161"),
    (s.CHAR, "00"), (s.Text(9), "02c328"), (s.Text(9), "0561"), (s.Text(2), "03616161"), (s.Text(9), "00"),
    (s.Text(9), "8100"), (s.Bytes(9), "ffffffffffffffffff01"), (s.Fixed(3), "6162"), (p.Option(s.U8), "0205"),
    (p.Seq(s.U16, 9), "0a" + "00" * 10), (p.Seq(s.U16, 9), "05000000"), (p.UNIT, "00"),
    (p.Map(s.U8, s.U8, 9), "0202010101"), (p.Map(s.U8, s.U8, 9), "0201010102"), (EITHER, "02"), (PAIR, "ac02"),
    (s.Words("a", "b"), "02"), (s.Constant("x"), "0179"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "spelled"), TABLE)
def test_table_is_written_and_read(kind: p.Kind, value: Any, spelled: str) -> None:
    assert p.encode(kind, value).hex() == spelled
    found = p.decode(kind, bytes.fromhex(spelled))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("kind", "spelled"), REFUSED)
def test_other_bytes_are_refused(kind: p.Kind, spelled: str) -> None:
    with pytest.raises(PostcardError, match="postcard: "):
        p.decode(kind, bytes.fromhex(spelled))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (s.U16, 65536), (s.U16, -1), (s.U16, True), (s.U16, 1.0), (s.U8, 256), (s.I16, 32768), (s.BOOL, 1),
        (s.I16, -32769), (s.I8, -129), (s.I8, 128),
        (s.Text(2), "abc"), (s.Text(9), ""), (s.Text(9), "\ud800"), (s.Text(9), b"a"), (s.CHAR, "ab"),
        (s.Bytes(1), "a"), (s.Fixed(2), b"abc"), (s.F32, float("nan")), (s.F32, -0.0), (s.F32, 1e300), (s.F32, 0.1),
        (s.F64, 1),
        (p.Seq(s.U8, 1), (1, 2)), (p.Seq(s.U8, 9), [1]), (p.Tuple(s.U8), (1, 2)), (p.Map(s.U8, s.U8, 0), {1: 1}),
        (PAIR, Empty()), (EITHER, 1), (s.Words("a"), "b"), (s.Constant("x"), "y"), (s.Unsigned(32, 5), 6),
    ],
)  # fmt: skip
def test_values_that_the_schema_does_not_hold_are_not_written(kind: p.Kind, value: Any) -> None:
    with pytest.raises(PostcardError, match="value"):
        p.encode(kind, value)


def test_fault_names_the_field_and_where_it_is() -> None:
    with pytest.raises(PostcardError, match=r"^postcard: pairs\[1\]\.b at byte 5: byte 7, expected 0 or 1$"):
        p.decode(p.Seq(PAIR, 9), bytes.fromhex("0201000107"), "pairs")


def test_items_of_no_size_are_no_sequence() -> None:
    with pytest.raises(AssertionError, match="items of no size"):
        p.Seq(p.Struct(Empty), 3)


@pytest.mark.parametrize(("kind", "bits"), [(s.U16, 16), (s.U32, 32), (s.U64, 64), (s.U128, 128)])
def test_number_of_more_bytes_than_it_can_have_is_not_read_on(kind: p.Kind, bits: int) -> None:
    with pytest.raises(PostcardError, match=f"a varint of more bytes than u{bits} has"):
        p.decode(kind, b"\x80" * 40 + b"\x01")


def test_count_is_held_against_the_bytes_before_anything_is_made() -> None:
    many = p.Seq(p.Tuple(s.U64, s.U64), 1 << 40)
    with pytest.raises(PostcardError, match="1099511627776 items, more than 2 bytes can hold"):
        p.decode(many, p.encode(s.U64, 1 << 40) + b"\0\0")


SMALL = st.recursive(
    st.sampled_from(
        [
            (s.U8, st.integers(0, 255)), (s.U16, st.integers(0, 2**16 - 1)), (s.U64, st.integers(0, 2**64 - 1)),
            (s.U128, st.integers(0, 2**128 - 1)), (s.I8, st.integers(-128, 127)),
            (s.I32, st.integers(-(2**31), 2**31 - 1)), (s.I128, st.integers(-(2**127), 2**127 - 1)),
            (s.BOOL, st.booleans()), (s.Text(64, empty=True), st.text(max_size=16)), (s.CHAR, st.characters()),
            (s.Bytes(16), st.binary(max_size=16)), (s.Fixed(4), st.binary(min_size=4, max_size=4)),
            (s.F64, st.floats(allow_nan=False).filter(lambda number: str(number) != "-0.0")),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: (p.Option(one[0]), st.none() | one[1])),
        inner.filter(lambda one: one[0].least > 0).map(
            lambda one: (p.Seq(one[0], 4), st.lists(one[1], max_size=4).map(tuple))
        ),
        st.tuples(inner, inner).map(lambda two: (p.Tuple(two[0][0], two[1][0]), st.tuples(two[0][1], two[1][1]))),
        inner.map(lambda one: (p.Map(s.U16, one[0], 4), st.dictionaries(st.integers(0, 65535), one[1], max_size=4))),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=40)
@given(st.data())
def test_every_value_comes_back_and_has_one_spelling(data: st.DataObject) -> None:
    kind, values = data.draw(SMALL)
    value = data.draw(values)
    spelled = p.encode(kind, value)
    assert p.decode(kind, spelled) == value
    for cut in range(len(spelled)):
        with pytest.raises(PostcardError):
            p.decode(kind, spelled[:cut])
    with pytest.raises(PostcardError):
        p.decode(kind, spelled + b"\0")


@settings(max_examples=60)
@given(st.data(), st.binary(max_size=24))
def test_bytes_that_are_read_are_what_is_written(data: st.DataObject, found: bytes) -> None:
    kind, _ = data.draw(SMALL)
    try:
        value = p.decode(kind, found)
    except PostcardError:
        return
    assert p.encode(kind, value) == found
