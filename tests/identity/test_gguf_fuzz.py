"""Whatever the bytes are, reading them either succeeds or raises ModelFileError, in memory bounded by the file."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.errors import ModelFileError
from mesh.identity.gguf import GgufHeader, read_header
from mesh.identity.metadata import GgufArray
from mesh.identity.reader import READ_AHEAD_BYTES
from tests.support.examples import examples
from tests.support.gguf_bytes import I32, STRING, U32, array, gguf, pair, small_model, string

VALID = small_model()
# Where a length or count is likely to be compared, added to or multiplied.
EDGES = [0, 1, 7, 8, 9, 12, 13, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1]

QUICK = settings(max_examples=examples(300))


def check(raw: bytes) -> GgufHeader | None:
    try:
        header = read_header(io.BytesIO(raw))
    except ModelFileError as e:
        fault = e
    else:
        fault = None
    if fault is not None:
        assert str(fault).isprintable()
        assert fault.offset is None or fault.offset >= 0
        return None
    ordered = sorted(header.tensors, key=lambda tensor: tensor.offset)
    assert all(before.end <= after.offset for before, after in pairwise(ordered))
    assert all(header.data_offset <= tensor.offset and tensor.end <= len(raw) for tensor in ordered)
    for value in header.metadata.values():
        if isinstance(value, GgufArray):
            assert len(value.values()) == value.count
    return header


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    raw = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw) - 1))
        match draw(st.sampled_from(["byte", "u32", "u64", "cut", "insert", "delete", "swap"])):
            case "byte":
                raw[at] = draw(st.integers(0, 255))
            case "u32":
                raw[at : at + 4] = struct.pack("<I", draw(st.sampled_from(EDGES)) & 0xFFFFFFFF)
            case "u64":
                raw[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(EDGES)))
            case "cut":
                del raw[at + 1 :]
            case "insert":
                raw[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "delete":
                del raw[at : at + draw(st.integers(1, 16))]
                raw = raw or bytearray(b"G")
            case _:
                end = draw(st.integers(at, len(raw)))
                raw[at:end] = raw[at:end][::-1]
    return bytes(raw)


@QUICK
@given(mutations())
def test_mutated_header_is_read_or_refused(raw: bytes) -> None:
    check(raw)


@QUICK
@given(st.binary(max_size=200))
def test_header_of_random_fields_is_read_or_refused(tail: bytes) -> None:
    check(b"GGUF\3\0\0\0" + tail)


def test_header_with_any_one_bit_flipped_is_read_or_refused() -> None:
    assert check(VALID) is not None
    for bit in range(len(VALID) * 8):
        raw = bytearray(VALID)
        raw[bit // 8] ^= 1 << bit % 8
        check(bytes(raw))


def test_header_with_any_length_replaced_is_read_or_refused() -> None:
    for at in range(len(VALID) - 8):
        for edge in (2**31, 2**40, 2**63, 2**64 - 1):
            check(VALID[:at] + struct.pack("<Q", edge) + VALID[at + 8 :])


def peak(raw: bytes) -> int:
    """The most bytes that reading `raw` held at once."""
    file = io.BytesIO(raw)
    tracemalloc.start()
    try:
        read_header(file)
    except ModelFileError:
        pass
    finally:
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return held


def test_memory_is_bounded_by_the_file() -> None:
    # Python objects of the shortest fields are some thirty times their bytes; long content is held about twice.
    claims = [
        VALID,
        gguf([array("a", I32, [1], count=2**40)]),
        gguf([array("a", STRING, ["x"], count=3_000_000)]),
        gguf([string("a") + struct.pack("<IQ", STRING, 2**24)]),
        gguf([string("a") + struct.pack("<IQ", STRING, 2**62)]),
        gguf([pair(f"k{i}", U32, i) for i in range(2000)]),
        b"GGUF" + struct.pack("<IQQ", 3, 65_536, 16_384),
    ]
    for raw in claims:
        assert peak(raw) < 32 * len(raw) + 2 * READ_AHEAD_BYTES
    words = random.Random(7)
    vocabulary = gguf([array("tokenizer.ggml.tokens", STRING, [words.randbytes(6) for _ in range(60_000)])])
    assert peak(vocabulary) < 4 * len(vocabulary) + 2 * READ_AHEAD_BYTES
