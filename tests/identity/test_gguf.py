from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import pytest

from mesh.errors import ModelFileError
from mesh.identity.gguf import GgufHeader, Split, read_header
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U16,
    U32,
    U64,
    array,
    gguf,
    pair,
    small_model,
    string,
    tensor,
)
from tests.support.tiny_gguf import CHATML, write_tiny_gguf

# One F32 tensor `t` of eight zeros in a llama file. Offsets: tensor count 8, pair count 16, the pair 24, tensor 69
# (its dimension count 78, dimension 82, type 90, data offset 94), data 128, end 160.
GOOD = bytes.fromhex(
    "47475546 03000000 0100000000000000 0100000000000000"
    "1400000000000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61"
    "0100000000000000 74 01000000 0800000000000000 00000000 0000000000000000" + "00" * 26 + "00" * 32
)


def read(raw: bytes) -> GgufHeader:
    return read_header(io.BytesIO(raw), label="model.gguf")


def refusal(raw: bytes) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read(raw)
    assert str(caught.value).startswith("model.gguf: ")
    return caught.value


def patched(at: int, patch: str) -> bytes:
    new = bytes.fromhex(patch)
    return GOOD[:at] + new + GOOD[at + len(new) :]


def test_header_of_a_minimal_file_is_read() -> None:
    header = read(GOOD)
    assert len(GOOD) == header.file_size == header.data_end == 160
    assert (header.version, header.architecture, header.alignment, header.data_offset) == (3, "llama", 32, 128)
    (only,) = header.tensors
    assert (only.name, only.type.name, only.dims, only.elements) == ("t", "F32", (8,), 8)
    assert (only.offset, only.size, only.end) == (128, 32, 160)
    assert header.block_count is header.chat_template is header.token_count is header.split is None


@pytest.mark.parametrize(
    ("raw", "field", "offset", "said"),
    [
        # Counts whose product with the size of a record wraps to something small.
        (patched(8, "aaaaaaaaaaaaaa02"), "tensor_count", 8, "192153584101141162, expected at most 65536"),
        (patched(16, "0000000000000010"), "metadata_kv_count", 16, "1152921504606846976, expected at most 16384"),
        (
            bytes.fromhex("47475546 03000000 0000000000000000 0100000000000000 ffffffffffffffff 616263"),
            "length of key 0",
            24,
            "18446744073709551615, expected at most 65535",
        ),
        # Elements times four bytes fit in 64 bits only until they are padded.
        (patched(82, "ffffffffffffff3f"), "tensor 't' size", 90, "18446744073709551612 bytes"),
        (
            patched(78, "02000000 0000000002000000 0000000002000000 00000000 0000000000000000"),
            "tensor 't' dimension 1",
            90,
            "8589934592 makes 73786976294838206464 elements",
        ),
        (patched(82, "0000000000000000"), "tensor 't' dimension 0", 82, "is 0"),
        (patched(78, "05000000"), "tensor 't' dimension count", 78, "5, expected at most 4"),
        (patched(90, "0f270000"), "tensor 't' type", 90, "unknown tensor type 9999"),
        (patched(90, "04000000"), "tensor 't' type", 90, "unknown tensor type 4"),
        (patched(90, "08000000"), "tensor 't' dimension 0", 90, "8, expected a multiple of 32 for Q8_0"),
        (patched(94, "0100000000000000"), "tensor 't' offset", 94, "1, expected a multiple of 32"),
        (patched(94, "e0ffffffffffff7f"), "tensor 't' offset", 94, "more than any file holds"),
        (GOOD[:4], "version", 4, "file has 4 bytes"),
        (b"", "magic", 0, "file has 0 bytes"),
    ],
)
def test_header_sizes_are_bounded_before_use(raw: bytes, field: str, offset: int, said: str) -> None:
    fault = refusal(raw)
    assert (fault.field, fault.offset) == (field, offset)
    assert said in str(fault)
    assert str(offset) in str(fault)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (bytes.fromhex("47475546 00000003 0000000000000000 0000000000000000"), "big-endian file (version 3)"),
        (bytes.fromhex("46554747 03000000 0000000000000000 0000000000000000"), "reversed magic b'FUGG'"),
        (patched(4, "00000000"), "version at byte 4: 0, expected 2 or 3"),
        (patched(4, "01000000"), "version at byte 4: 1, expected 2 or 3"),
        (patched(4, "63000000"), "version at byte 4: 99, expected 2 or 3"),
        (b"PK\x03\x04" + GOOD[4:], "b'PK\\x03\\x04', expected b'GGUF': not a GGUF file"),
    ],
)
def test_header_of_another_byte_order_or_version_is_refused_by_name(raw: bytes, said: str) -> None:
    assert said in str(refusal(raw))


def test_header_version_2_reads_as_version_3_does() -> None:
    assert read(patched(4, "02000000")).tensors == read(GOOD).tensors


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (GOOD[:144], "tensor 't' at byte 128: declared end 160, file has 144 bytes"),
        (patched(94, "0000000000010000"), "declared end 1099511627936, file has 160 bytes"),
    ],
)
def test_tensor_beyond_the_files_end_is_refused(raw: bytes, said: str) -> None:
    fault = refusal(raw)
    assert said in str(fault)
    assert fault.field == "tensor 't'"


def test_truncated_model_names_the_last_tensor(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    header = read(whole)
    last = max(header.tensors, key=lambda tensor: tensor.end)
    for length in (len(whole) - 1, len(whole) // 2, header.data_offset):
        fault = refusal(whole[:length])
        assert f"declared end {len(whole)}, file has {length} bytes" in str(fault)
        assert fault.field == f"tensor {last.name!r}"


def test_header_of_every_prefix_is_refused() -> None:
    whole = small_model()
    read(whole)
    for length in range(len(whole)):
        assert refusal(whole[:length]).offset is not None


def test_bytes_after_the_last_tensor_are_allowed() -> None:
    header = read(GOOD + b"junk")
    assert (header.data_end, header.file_size) == (160, 164)


def test_tensors_on_the_same_bytes_are_refused() -> None:
    raw = gguf(tensors=[tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], data=bytes(64))
    assert "tensor 'b'" in str(refusal(raw))
    assert "overlaps tensor 'a', which ends at" in str(refusal(raw))
    apart = gguf(tensors=[tensor("b", [8], 0, 96), tensor("a", [16], 0, 0)], data=bytes(128))
    assert [t.name for t in read(apart).tensors] == ["b", "a"]


@pytest.mark.parametrize(
    ("pairs", "tensors", "said"),
    [
        ([pair("llama.block_count", U32, 100_000)], [], "is 100000, expected 0 to 512"),
        ([pair("llama.block_count", U32, 500)], [], "is 500, the tensors are for 0"),
        ([pair("llama.block_count", U32, 3)], ["blk.0.w", "blk.1.w"], "is 3, the tensors are for 2"),
        ([pair("llama.block_count", U32, 1)], ["blk.0.w", "blk.1.w"], "is 1, the tensors are for 2"),
        ([], ["blk.600.w"], "is None, the tensors are for 601"),
        ([pair("llama.block_count", U32, 1)], ["blk.99999999999999999999.w"], "the tensors are for 1000000000"),
    ],
)
def test_block_count_is_held_against_a_limit_and_the_tensors(pairs: list[bytes], tensors: list[str], said: str) -> None:
    entries = [tensor(name, [8], 0, 32 * i) for i, name in enumerate(tensors)]
    fault = refusal(gguf(pairs, entries, bytes(32 * len(tensors))))
    assert said in str(fault)
    assert fault.field == "llama.block_count"
    assert (fault.offset is not None) == bool(pairs)


@pytest.mark.parametrize("present", [[0, 1, 2], [0, 2], [0, 1]])
def test_block_count_allows_pruned_and_look_ahead_layers(present: list[int]) -> None:
    pairs = [pair("llama.block_count", U32, 3), pair("llama.nextn_predict_layers", U32, 1)]
    entries = [tensor(f"blk.{layer}.w", [8], 0, 32 * i) for i, layer in enumerate(present)]
    assert read(gguf(pairs, entries, bytes(96))).block_count == 3


@pytest.mark.parametrize(
    ("pairs", "field", "said"),
    [
        ([pair("a", U32, 1), pair("a", U32, 1)], "a", "key given twice"),
        ([string("a") + struct.pack("<I", 13)], "a", "value kind 13, expected 0 to 12"),
        ([pair("a", BOOL, 2)], "a", "boolean 2, expected 0 or 1"),
        ([array("a", BOOL, [0, 1, 3, 0])], "a", "booleans other than 0 and 1"),
        ([pair("a", STRING, b"\xff")], "a", "not UTF-8"),
        ([string(b"\xc3") + struct.pack("<II", U32, 0)], "key 1", "not UTF-8"),
        ([array("a", U64, [1], count=2**61)], "count of a", "expected at most"),
        ([array("a", U64, [1], count=9)], "a", "72 bytes declared, file has"),
        ([array("a", STRING, ["x"], count=2**60)], "count of a", "expected at most 4000000"),
        ([array("a", STRING, ["x"], count=1000)], "a", "8000 bytes declared, file has"),
        ([string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**63)], "a[0]", "length 9223372036854775808"),
        ([string("a") + struct.pack("<IQ", STRING, 2**40)], "length of a", "1099511627776, expected at most 16777216"),
        ([string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 0)], "a", "array of arrays"),
        ([string("a") + struct.pack("<IIQ", ARRAY, 77, 0)], "a", "element kind 77"),
        ([pair("general.alignment", U32, 0)], "general.alignment", "expected 1 to"),
        ([pair("general.alignment", U32, 48)], "general.alignment", "expected a power of two of kind u32"),
        ([pair("general.alignment", U64, 32)], "general.alignment", "32 of kind u64"),
        ([pair("general.alignment", STRING, "32")], "general.alignment", "of kind string, expected integer"),
        ([pair("llama.context_length", U32, 0)], "llama.context_length", "is 0, expected 1 to"),
        ([pair("llama.block_count", BOOL, 1)], "llama.block_count", "of kind bool, expected integer"),
        ([pair("tokenizer.chat_template", U32, 1)], "tokenizer.chat_template", "of kind u32, expected string"),
        ([pair("tokenizer.ggml.add_bos_token", U32, 1)], "tokenizer.ggml.add_bos_token", "expected boolean"),
        ([array("tokenizer.ggml.tokens", U32, [1])], "tokenizer.ggml.tokens", "an array of u32, expected string"),
        ([pair("tokenizer.ggml.tokens", U32, 1)], "tokenizer.ggml.tokens", "of kind u32, expected array"),
        (
            [array("tokenizer.ggml.tokens", STRING, ["a"]), pair("tokenizer.ggml.eos_token_id", U32, 1)],
            "tokenizer.ggml.eos_token_id",
            "is 1, expected 0 to 0",
        ),
        # The native loader indexes these by token id.
        (
            [array("tokenizer.ggml.tokens", STRING, ["a", "b"]), array("tokenizer.ggml.scores", F32, [0.0])],
            "tokenizer.ggml.scores",
            "1 long, expected 2 as there are tokens",
        ),
        (
            [array("tokenizer.ggml.tokens", STRING, ["a"]), array("tokenizer.ggml.token_type", F32, [0.0])],
            "tokenizer.ggml.token_type",
            "an array of f32, expected i32 or u32",
        ),
        ([array("tokenizer.ggml.token_type", I32, [1])], "tokenizer.ggml.token_type", "none without a vocabulary"),
        ([pair("split.count", U32, 100_000)], "split.count", "expected 0 to 99999"),
        ([pair("split.count", U16, 2), pair("split.no", U16, 2)], "split.no", "is 2, expected 0 to 1"),
    ],
)
def test_metadata_of_the_wrong_kind_or_range_is_refused(pairs: list[bytes], field: str, said: str) -> None:
    fault = refusal(gguf(pairs))
    assert fault.field == field
    assert said in str(fault)
    assert fault.offset is not None


@pytest.mark.parametrize("architecture", [None, "", "../../etc", "a\nb", "x" * 65])
def test_architecture_is_required_and_a_short_name(architecture: str | None) -> None:
    assert refusal(gguf(architecture=architecture)).field == "general.architecture"


def test_tensor_names_are_unique_and_short() -> None:
    twice = gguf(tensors=[tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)], data=bytes(64))
    assert "tensor 'a' at byte" in str(refusal(twice))
    assert "name given twice" in str(refusal(twice))
    assert "expected at most 63" in str(refusal(gguf(tensors=[tensor("x" * 64, [8], 0, 0)], data=bytes(32))))


def test_alignment_moves_the_data() -> None:
    raw = gguf([pair("general.alignment", U32, 256)], [tensor("a", [8], 0, 0)], bytes(32), alignment=256)
    header = read(raw)
    assert (header.alignment, header.data_offset) == (256, 256)


def test_metadata_is_typed_and_arrays_are_decoded_when_asked() -> None:
    metadata = read(small_model()).metadata
    assert metadata.text("general.name") == "small"
    assert metadata.integer("absent") is metadata.text("absent") is metadata.array("absent") is None
    assert metadata.kind("llama.block_count") == "u32"
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert list(metadata)[:2] == ["general.architecture", "general.name"]
    assert len(metadata) == 16
    tokens = metadata.array("tokenizer.ggml.tokens")
    scores = metadata.array("tokenizer.ggml.scores")
    assert tokens is not None
    assert scores is not None
    assert tokens.values() == [b"<s>", b"</s>", b"a", b"b", b"\xe2\x82"]
    assert scores.values() == [0.0, 0.0, -1.0, -2.0, -3.0]
    with pytest.raises(ModelFileError, match=r"general\.name at byte \d+ is of kind string, expected integer"):
        metadata.integer("general.name")


def test_flags_in_arrays_are_booleans() -> None:
    flags = read(gguf([array("a", BOOL, [1, 0, 1])])).metadata.array("a")
    assert flags is not None
    assert flags.values() == [True, False, True]


def test_header_of_a_generated_model_holds_what_was_written(tmp_path: Path) -> None:
    header = read_header(write_tiny_gguf(tmp_path / "tiny.gguf", context=512, name="tiny", layers=2))
    assert (header.label, header.architecture, header.name) == ("tiny.gguf", "llama", "tiny")
    assert (header.context_length, header.block_count, header.token_count) == (512, 2, 264)
    assert (header.tokenizer_model, header.tokenizer_pre) == ("gpt2", "smollm")
    assert (header.bos_token_id, header.eos_token_id, header.add_bos_token) == (1, 2, False)
    assert header.chat_template == CHATML


def test_header_says_nothing_that_the_file_does_not(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", template=None, pre=None, eos=None, bos=None, add_bos=None)
    header = read_header(path)
    assert header.chat_template is header.tokenizer_pre is header.add_bos_token is None
    assert header.eos_token_id is header.bos_token_id is None


def test_later_shard_has_its_place_and_nothing_else(tmp_path: Path) -> None:
    first = write_tiny_gguf(tmp_path / "tiny.gguf", shards=3)
    later = read_header(first.with_name("tiny-00003-of-00003.gguf"))
    assert later.split == Split(number=2, count=3, tensors=39)
    assert later.architecture is None
    assert len(later.tensors) == 13


@pytest.mark.real_model
def test_header_of_a_published_model_is_read(smollm2: Path) -> None:
    header = read_header(smollm2)
    assert (header.architecture, header.context_length, header.block_count) == ("llama", 8192, 30)
    assert (header.tokenizer_model, header.tokenizer_pre, header.token_count) == ("gpt2", "smollm", 49152)
    assert (header.bos_token_id, header.eos_token_id, header.add_bos_token) == (1, 2, False)
    assert header.chat_template is not None
    assert "<|im_start|>" in header.chat_template
    assert len(header.tensors) == 272
    assert header.data_end == header.file_size == 98_362_432
    merges = header.metadata.array("tokenizer.ggml.merges")
    assert merges is not None
    assert merges.count == len(merges.values()) == 48_900


def test_file_that_shrinks_while_it_is_read_is_refused() -> None:
    class Shrunk(io.BytesIO):
        def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
            return super().seek(position, whence) + (1000 if whence == os.SEEK_END else 0)

    with pytest.raises(ModelFileError, match="file ends at byte 30, it had 1030 bytes"):
        read_header(Shrunk(GOOD[:30]))


def test_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="not a regular file"):
            read_header(path)
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "absent.gguf")
