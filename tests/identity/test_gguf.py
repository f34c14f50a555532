from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import pytest

from mesh.errors import ModelFileError
from mesh.identity.gguf import Split, read_header
from tests.support.gguf_bytes import (
    read,
    refusal,
    small_model,
)
from tests.support.tiny_gguf import CHATML, write_tiny_gguf

# One F32 tensor `t` of eight zeros in a llama file. Offsets: tensor count 8, pair count 16, the pair 24, tensor 69
# (its dimension count 78, dimension 82, type 90, data offset 94), data 128, end 160.
GOOD = bytes.fromhex(
    "47475546 03000000 0100000000000000 0100000000000000"
    "1400000000000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61"
    "0100000000000000 74 01000000 0800000000000000 00000000 0000000000000000" + "00" * 26 + "00" * 32
)


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


def test_header_of_a_generated_model_holds_what_was_written(tmp_path: Path) -> None:
    header = read_header(write_tiny_gguf(tmp_path / "tiny.gguf", context=512, name="tiny", layers=2))
    assert (header.label, header.architecture, header.name) == ("tiny.gguf", "llama", "tiny")
    assert (header.context_length, header.block_count, header.token_count) == (512, 2, 264)
    assert (header.tokenizer_model, header.tokenizer_pre) == ("gpt2", "smollm")
    assert (header.bos_token_id, header.eos_token_id, header.add_bos_token) == (1, 2, False)
    assert header.chat_template == CHATML


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


@pytest.mark.parametrize(("at", "field", "most"), [(8, "tensor_count", 65_536), (16, "metadata_kv_count", 16_384)])
def test_counts_have_a_bound(at: int, field: str, most: int) -> None:
    def counted(number: int) -> str:
        fault = refusal(GOOD[:at] + struct.pack("<Q", number) + GOOD[at + 8 :])
        return f"{fault.field}: {str(fault).rpartition(': ')[2]}"

    assert counted(most + 1) == f"{field}: {most + 1}, expected at most {most}"
    assert "expected at most" not in counted(most)


@pytest.mark.parametrize("swapped", [1, 3, 0xFFFF])
def test_version_in_the_other_byte_order_is_told(swapped: int) -> None:
    said = f"big-endian file (version {swapped}), expected little-endian"
    assert said in str(refusal(patched(4, struct.pack(">I", swapped).hex())))


@pytest.mark.parametrize("version", [0, 1, 4, 0x100, 0x101, 0xFFFF_FFFF])
def test_version_that_is_neither_is_shown_as_it_stands(version: int) -> None:
    fault = refusal(patched(4, struct.pack("<I", version).hex()))
    assert (fault.field, fault.offset) == ("version", 4)
    assert str(fault).endswith(f"version at byte 4: {version}, expected 2 or 3")


def test_magic_in_another_order_is_refused_at_the_beginning() -> None:
    for magic in (b"FUGF", b"FUGH", b"GGUE", b"GGUG", b"\0\0\0\0", b"\xff\xff\xff\xff"):
        fault = refusal(magic + GOOD[4:])
        assert (fault.field, fault.offset) == ("magic", 0)
        assert str(fault).endswith(f"magic at byte 0: {magic!r}, expected b'GGUF': not a GGUF file")
    fault = refusal(b"FUGG" + GOOD[4:])
    assert (fault.field, fault.offset) == ("magic", 0)


def test_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="not a regular file"):
            read_header(path)
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "absent.gguf")
