"""The cursor: what it gives, where it stands after, and that it never reads for what the file cannot have."""

from __future__ import annotations

import io
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ModelFileError
from mesh.identity.reader import MAX_HEADER_BYTES, READ_AHEAD_BYTES, Reader

UINT32 = struct.Struct("<I")


class Claimed(io.BytesIO):
    """A file that says it is `size` bytes long, gives the bytes that it has, and keeps how many it was asked for."""

    def __init__(self, raw: bytes, size: int) -> None:
        super().__init__(raw)
        self.claimed = size
        self.asked: list[int] = []

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        return self.claimed if whence == os.SEEK_END else super().seek(position, whence)

    def read(self, size: int | None = -1) -> bytes:
        self.asked.append(-1 if size is None else size)
        return super().read(size)


def reader(raw: bytes) -> Reader:
    file = io.BytesIO(raw)
    file.seek(0, os.SEEK_END)  # read from its start wherever it stands
    return Reader(file, "m")


def length(count: int) -> bytes:
    return struct.pack("<Q", count)


def refused(caught: pytest.ExceptionInfo[ModelFileError]) -> tuple[str, str | None, int | None]:
    return str(caught.value), caught.value.field, caught.value.offset


def test_bounds_are_those_that_are_written_down() -> None:
    assert (MAX_HEADER_BYTES, READ_AHEAD_BYTES) == (128 << 20, 256 << 10)


def test_fields_come_in_order_and_the_cursor_is_behind_them() -> None:
    whole = reader(b"ab" + struct.pack("<Id", 7, 1.5) + length(9) + length(3) + b"xyz" + b"end")
    assert (whole.at, whole.size, whole.label) == (0, 36, "m")
    assert (whole.take("a", 2), whole.at) == (b"ab", 2)
    assert (whole.number("b", UINT32), whole.at) == (7, 6)
    assert (whole.number("c", struct.Struct("<d")), whole.at) == (1.5, 14)
    assert (whole.length("d", 9), whole.at) == (9, 22)
    assert (whole.string("e", 3), whole.at) == ("xyz", 33)
    assert (whole.take("f", 0), whole.at) == (b"", 33)
    assert (whole.take("f", 3), whole.at) == (b"end", 36)


def test_fault_is_at_the_cursor_or_where_it_is_said_to_be() -> None:
    one = reader(b"abc")
    one.take("a", 2)
    assert (str(one.fault("f", "x")), one.fault("f", "x").offset) == ("m: f at byte 2: x", 2)
    assert (str(one.fault("f", "x", 0)), one.fault("f", "x", 0).offset) == ("m: f at byte 0: x", 0)


@pytest.mark.parametrize("have", range(8))
def test_nothing_beyond_the_end_is_read(have: int) -> None:
    said = f"m: f at byte 1: 8 bytes declared, file has {have + 1} bytes", "f", 1
    for read in (lambda one: one.take("f", 8), lambda one: one.length("f", 9), lambda one: one.strings("f", 1, 9)):
        one = reader(bytes(have + 1))
        one.take("first", 1)
        with pytest.raises(ModelFileError) as caught:
            read(one)
        assert refused(caught) == said
        assert one.at == 1


def test_length_and_string_have_a_bound() -> None:
    assert reader(length(5)).length("f", 5) == 5
    assert reader(length(2**64 - 1)).length("f", 2**64 - 1) == 2**64 - 1
    for wrong in (6, 2**63, 2**64 - 1):
        with pytest.raises(ModelFileError) as caught:
            reader(length(wrong)).length("f", 5)
        assert refused(caught) == (f"m: f at byte 0: {wrong}, expected at most 5", "f", 0)
    one = reader(b"x" + length(4) + b"four")
    one.take("first", 1)
    with pytest.raises(ModelFileError) as caught:
        one.string("f", 3)
    assert refused(caught) == ("m: length of f at byte 1: 4, expected at most 3", "length of f", 1)


def test_text_that_is_no_utf8_is_told_where() -> None:
    one = reader(b"xy" + length(4) + b"ok\xffz")
    one.take("first", 2)
    with pytest.raises(ModelFileError) as caught:
        one.string("f", 4)
    assert refused(caught) == ("m: f at byte 12: not UTF-8: invalid start byte", "f", 12)


@given(st.lists(st.binary(max_size=40), max_size=12), st.binary(max_size=9), st.integers(0, 3))
def test_strings_are_taken_as_they_stand(texts: list[bytes], after: bytes, before: int) -> None:
    raw = b"".join(length(len(text)) + text for text in texts)
    one = reader(bytes(before) + raw + after)
    one.take("before", before)
    assert one.strings("f", len(texts), 40) == raw
    assert one.at == before + len(raw)
    assert one.take("after", len(after)) == after


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_strings_that_are_cut_are_refused_where_the_file_ends(texts: list[bytes], data: st.DataObject) -> None:
    """Byte by byte the same as reading each length and each text by itself, bar that room for all lengths is asked for
    first."""
    raw = b"".join(length(len(text)) + text for text in texts)
    kept = data.draw(st.integers(0, len(raw) - 1))
    one = reader(raw[:kept])
    with pytest.raises(ModelFileError) as caught:
        one.strings("f", len(texts), 40)
    if kept < 8 * len(texts):
        expected = "f", 0, f"{8 * len(texts)} bytes declared"
    else:
        at, left = 0, kept
        for i, text in enumerate(texts):
            if left < 8:
                expected = f"f[{i}]", at, "8 bytes declared"
                break
            at, left = at + 8, left - 8
            if left < len(text):
                expected = f"f[{i}]", at, f"{len(text)} bytes declared"
                break
            at, left = at + len(text), left - len(text)
    field, offset, said = expected
    assert refused(caught) == (f"m: {field} at byte {offset}: {said}, file has {kept} bytes", field, offset)


@pytest.mark.parametrize("wrong", [4, 5, 2**63, 2**64 - 1])
def test_one_string_that_is_too_long_is_named(wrong: int) -> None:
    one = reader(b"x" + length(3) + b"abc" + length(wrong) + b"abcd")
    one.take("first", 1)
    with pytest.raises(ModelFileError) as caught:
        one.strings("f", 2, 3)
    assert refused(caught) == (f"m: f[1] at byte 12: length {wrong}, expected at most 3", "f[1]", 12)


def test_what_does_not_fit_is_not_read_for() -> None:
    file = Claimed(b"", 2**50)
    one = Reader(file, "m")
    with pytest.raises(ModelFileError) as caught:
        one.take("f", MAX_HEADER_BYTES + 1)
    assert refused(caught) == ("m: f at byte 0: header is longer than 134217728 bytes", "f", 0)
    with pytest.raises(ModelFileError, match=r"f at byte 0: header is longer than 134217728 bytes"):
        one.strings("f", MAX_HEADER_BYTES // 8 + 1, 1)
    with pytest.raises(ModelFileError, match=r"f at byte 0: 1125899906842625 bytes declared"):
        one.take("f", 2**50 + 1)
    assert file.asked == []
    with pytest.raises(ModelFileError, match=r"f at byte 0: file ends at byte 0, it had 1125899906842624 bytes"):
        one.take("f", MAX_HEADER_BYTES)
    assert file.asked == [READ_AHEAD_BYTES]


def test_the_bound_is_on_the_whole_header() -> None:
    one = Reader(Claimed(bytes(10), 2**50), "m")
    one.at = 10
    with pytest.raises(ModelFileError, match="f at byte 10: header is longer"):
        one.take("f", MAX_HEADER_BYTES - 9)
    with pytest.raises(ModelFileError, match="f at byte 10: file ends at byte 10"):
        one.take("f", MAX_HEADER_BYTES - 10)


def test_reading_goes_ahead_by_one_piece_and_no_further_than_the_file() -> None:
    piece = READ_AHEAD_BYTES
    raw = os.urandom(7 * piece + 5)
    file = Claimed(raw, len(raw))
    one = Reader(file, "m")
    for count, asked in (
        (1, [piece]),
        (piece - 2, []),
        (1, []),
        (piece + 7, [piece, 7]),
        (1, [piece]),
        (4 * piece, [piece, piece, piece, 1]),
        (1, [piece - 3]),
        (piece - 4, []),
    ):
        file.asked.clear()
        at = one.at
        assert one.take("f", count) == raw[at : at + count]
        assert (file.asked, one.at) == (asked, at + count)
    assert one.at == one.size == len(raw)


def test_a_file_that_gives_less_than_it_is_asked_for_is_asked_again() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(3, size or 0))

    one = Reader(Slow(length(9) + b"ninebytes"), "m")
    assert one.string("f", 9) == "ninebytes"


def test_string_of_the_most_bytes_is_read_however_many_pieces_it_takes() -> None:
    text = bytes(READ_AHEAD_BYTES)
    one = reader(length(len(text)) + text)
    assert one.strings("f", 1, len(text)) == length(len(text)) + text
    with pytest.raises(ModelFileError, match=r"f\[0\] at byte 0: length 262144, expected at most 262143"):
        reader(length(len(text)) + text).strings("f", 1, len(text) - 1)


def test_strings_over_several_pieces_are_one() -> None:
    texts = [bytes([i % 256]) * (i % 50) for i in range(40_000)]
    raw = b"".join(length(len(text)) + text for text in texts)
    assert len(raw) > 4 * READ_AHEAD_BYTES
    one = reader(raw)
    assert one.strings("f", len(texts), 49) == raw
    assert one.at == one.size
