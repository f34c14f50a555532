"""Where each bound on a tensor lies: what is just within it is read, what is just beyond is refused by that bound."""

from __future__ import annotations

import io
import struct

import pytest

from mesh.errors import ModelFileError
from mesh.identity.gguf import read_header
from mesh.identity.tensors import GgufTensor, aligned
from tests.support.gguf_bytes import U32, gguf, pair, string, tensor

F32, F16, Q8_0, I8 = 0, 1, 8, 24
MOST = 2**63 - 1  # what a signed 64-bit number holds


def read(*entries: bytes, data: int = 0, pairs: tuple[bytes, ...] = ()) -> tuple[GgufTensor, ...]:
    return read_header(io.BytesIO(gguf(pairs, entries, bytes(data))), label="m").tensors


def refusal(*entries: bytes, data: int = 0, pairs: tuple[bytes, ...] = ()) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(*entries, data=data, pairs=pairs)
    field, _, said = str(caught.value).removeprefix("m: ").partition(" at byte ")
    offset, _, said = said.partition(": ")
    assert (caught.value.field, caught.value.offset) == (field, int(offset))
    return f"{field}: {said}"


# Where `t`'s header begins in a file without another pair than its architecture, and its parts.
NAME = 69
RANK, DIMS = NAME + 9, NAME + 13


@pytest.mark.parametrize(
    ("entry", "field", "offset", "said"),
    [
        (tensor("t", [1] * 5, I8, 0), "tensor 't' dimension count", RANK, "5, expected at most 4"),
        (tensor("t", [0], I8, 0), "tensor 't' dimension 0", DIMS, "is 0"),
        (tensor("t", [1, 0], I8, 0), "tensor 't' dimension 1", DIMS + 8, "is 0"),
        (tensor("t", [2**63], I8, 0), "tensor 't' dimension 0", DIMS, f"{2**63}, expected at most {MOST}"),
        (
            tensor("t", [2**32, 2**31], I8, 0),
            "tensor 't' dimension 1",
            DIMS + 8,
            f"{2**31} makes {2**63} elements, expected at most {MOST}",
        ),
        (tensor("t", [1], 4, 0), "tensor 't' type", DIMS + 8, "unknown tensor type 4"),
        (tensor("t", [33], Q8_0, 0), "tensor 't' dimension 0", DIMS + 8, "33, expected a multiple of 32 for Q8_0"),
        (tensor("t", [], Q8_0, 0), "tensor 't' dimension 0", DIMS, "1, expected a multiple of 32 for Q8_0"),
        (tensor("t", [2**62], F16, 0), "tensor 't' size", DIMS + 8, f"{2**63} bytes, expected at most {MOST}"),
        (tensor("t", [1], I8, 2**63), "tensor 't' offset", DIMS + 12, f"{2**63}, expected at most {MOST}"),
        (tensor("t", [1], I8, 33), "tensor 't' offset", DIMS + 12, "33, expected a multiple of 32"),
        (
            tensor("t", [32], I8, 2**63 - 32),
            "tensor 't' offset",
            DIMS + 12,
            f"{2**63 - 32} plus 32 bytes is more than any file holds",
        ),
    ],
)
def test_tensor_beyond_a_bound_is_refused_where_it_says_so(entry: bytes, field: str, offset: int, said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(entry)
    assert (caught.value.field, caught.value.offset) == (field, offset)
    assert str(caught.value) == f"m: {field} at byte {offset}: {said}"


@pytest.mark.parametrize(
    ("entry", "end"),
    [
        (tensor("t", [MOST], I8, 0), MOST),
        (tensor("t", [1, MOST, 1], I8, 0), MOST),
        (tensor("t", [2**61 - 1], F32, 0), 2**63 - 4),
        (tensor("t", [31], I8, 2**63 - 32), MOST),
        (tensor("t", [1], I8, 2**63 - 32), 2**63 - 31),
    ],
)
def test_tensor_within_every_bound_but_that_of_the_file_is_held_against_the_file(entry: bytes, end: int) -> None:
    head = len(gguf((), [entry]))
    expected = f"tensor 't': declared end {head + end}, file has {head} bytes"
    assert refusal(entry) == expected


@pytest.mark.parametrize(
    ("dims", "kind", "elements", "size"),
    [([], F32, 1, 4), ([1], F32, 1, 4), ([2, 3, 5, 7], F16, 210, 420), ([64, 3], Q8_0, 192, 204), ([1] * 4, I8, 1, 1)],
)
def test_tensor_has_the_elements_and_bytes_that_its_dimensions_make(
    dims: list[int], kind: int, elements: int, size: int
) -> None:
    entry = tensor("t", dims, kind, 32)
    (only,) = read(entry, data=32 + size)
    head = len(gguf((), [entry]))
    assert (only.dims, only.elements, only.size) == (tuple(dims), elements, size)
    assert (only.offset, only.end) == (head + 32, head + 32 + size)


def test_tensors_may_touch_and_no_more() -> None:
    one, two, three = tensor("a", [32], I8, 0), tensor("b", [64], I8, 32), tensor("c", [1], I8, 96)
    head = len(gguf((), [three, one, two]))
    found = read(three, one, two, data=97)
    assert [(each.name, each.offset - head, each.end - head) for each in found] == [
        ("c", 96, 97), ("a", 0, 32), ("b", 32, 96),
    ]  # fmt: skip
    longer = tensor("a", [33], I8, 0)
    assert refusal(three, longer, two, data=97) == f"tensor 'b': overlaps tensor 'a', which ends at {head + 33}"
    assert refusal(tensor("b", [1], I8, 0), one, data=32).startswith("tensor 'a': overlaps tensor 'b'")
    assert refusal(one, two, three, data=96) == f"tensor 'c': declared end {head + 97}, file has {head + 96} bytes"


def test_the_tensor_that_ends_last_is_the_one_that_the_file_lacks() -> None:
    long, late = tensor("long", [200], I8, 0), tensor("late", [8], I8, 64)
    assert refusal(long, late, data=100).startswith("tensor 'long': declared end ")
    assert refusal(late, long, data=100).startswith("tensor 'long': declared end ")


def test_tensor_name_is_at_most_63_bytes_and_given_once() -> None:
    (only,) = read(tensor("é" * 31 + "x", [1], I8, 0), data=1)
    assert len(only.name.encode()) == 63
    assert refusal(tensor("é" * 32, [1], I8, 0), data=1) == "length of name of tensor 0: 64, expected at most 63"
    one = tensor("a", [1], I8, 0)
    twice = refusal(tensor("b", [1], I8, 64), one, tensor("a", [1], I8, 32), data=97)
    assert twice == "tensor 'a': name given twice"
    with pytest.raises(ModelFileError) as caught:
        read(one, tensor("a", [1], I8, 32))
    assert caught.value.offset == NAME + len(one)
    assert refusal(string(b"\xff") + struct.pack("<I", 0)).startswith("name of tensor 0: not UTF-8")


@pytest.mark.parametrize("alignment", [1, 2, 256, 2**20])
def test_offsets_are_multiples_of_the_alignment_that_the_file_gives(alignment: int) -> None:
    given = (pair("general.alignment", U32, alignment),)
    first, second = tensor("a", [1], I8, 0), tensor("b", [1], I8, alignment)
    raw = gguf(given, [first, second], bytes(alignment + 1), alignment=alignment)
    header = read_header(io.BytesIO(raw))
    assert [each.offset for each in header.tensors] == [header.data_offset, header.data_offset + alignment]
    assert header.data_end == len(raw)
    if alignment > 1:
        wrong = tensor("b", [1], I8, alignment + 1)
        said = f"{alignment + 1}, expected a multiple of {alignment}"
        assert refusal(first, wrong, pairs=given).endswith(said)


@pytest.mark.parametrize(
    ("offset", "alignment", "expected"),
    [(0, 32, 0), (1, 32, 32), (31, 32, 32), (32, 32, 32), (33, 32, 64), (7, 1, 7), (2**63, 2**20, 2**63)],
)
def test_data_begins_at_the_next_multiple(offset: int, alignment: int, expected: int) -> None:
    assert aligned(offset, alignment) == expected
