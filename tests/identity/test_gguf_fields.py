"""What a header says of the model, and what it may not say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.identity.gguf import Split, read_header
from mesh.schema.limits import MAX_TOKEN_ID
from tests.support.gguf_bytes import (
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U16,
    U32,
    U64,
    array,
    gguf,
    pair,
    read,
    refusal,
    tensor,
)
from tests.support.tiny_gguf import write_tiny_gguf


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


def test_alignment_moves_the_data() -> None:
    raw = gguf([pair("general.alignment", U32, 256)], [tensor("a", [8], 0, 0)], bytes(32), alignment=256)
    header = read(raw)
    assert (header.alignment, header.data_offset) == (256, 256)


def test_header_says_nothing_that_the_file_does_not(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", template=None, pre=None, eos=None, bos=None, add_bos=None)
    header = read_header(path)
    assert header.chat_template is header.tokenizer_pre is header.add_bos_token is None
    assert header.eos_token_id is header.bos_token_id is None


def listed(*names: str) -> list[bytes]:
    return [tensor(name, [8], 0, 32 * i) for i, name in enumerate(names)]


def with_blocks(declared: int | None, names: Sequence[str], ahead: int | None = None) -> bytes:
    told = {"block_count": declared, "nextn_predict_layers": ahead}
    pairs = [pair(f"llama.{name}", U32, number) for name, number in told.items() if number is not None]
    return gguf(pairs, listed(*names), bytes(32 * len(names)))


@pytest.mark.parametrize(
    ("declared", "names", "ahead"),
    [
        (None, ["blk.511.w"], None),
        (0, [], None),
        (0, ["token_embd.weight", "myblk.5.w", "blk.x.w", "blk.7"], None),
        (512, ["blk.511.w"], None),
        (2, ["blk.1.w"], None),
        (2, ["mm.blk.1.w", "blk.0.w"], None),
        (3, ["blk.0.w"], 2),
        (2, ["blk.0.w"], 1),
        (3, ["blk.2.w"], 2),
        (3, [], 3),
        (3, ["blk.1.w"], 1),
    ],
)
def test_block_count_agrees_with_the_tensors(declared: int | None, names: list[str], ahead: int | None) -> None:
    assert read(with_blocks(declared, names, ahead)).block_count == declared


@pytest.mark.parametrize(
    ("declared", "names", "ahead", "highest"),
    [
        (None, ["blk.512.w"], None, 513),
        (0, ["blk.0.w"], None, 1),
        (1, ["blk.0.w", "blk.1.w"], None, 2),
        (2, ["blk.0.w"], None, 1),
        (3, ["blk.0.w"], 1, 1),
        (3, [], 2, 0),
        (5, ["blk.0.w", "blk.3.w", "blk.2.w"], None, 4),
        (1, ["blk.1234567890.w"], None, 123_456_790),
    ],
)
def test_block_count_that_the_tensors_are_not_for_is_refused(
    declared: int | None, names: list[str], ahead: int | None, highest: int
) -> None:
    fault = refusal(with_blocks(declared, names, ahead))
    assert str(fault).endswith(f" is {declared}, the tensors are for {highest}")
    assert fault.field == "llama.block_count"


POWER = "expected a power of two of kind u32"
TOKENS = array("tokenizer.ggml.tokens", STRING, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("pairs", "read_as"),
    [
        ([pair("general.alignment", U32, 2**20)], {"alignment": 2**20}),
        ([pair("general.alignment", U32, 1)], {"alignment": 1}),
        ([], {"alignment": 32, "context_length": None, "bos_token_id": None, "token_count": None, "split": None}),
        ([pair("llama.context_length", U32, 1)], {"context_length": 1}),
        ([pair("llama.context_length", U32, 2**31 - 1)], {"context_length": 2**31 - 1}),
        ([pair("other.context_length", U32, 7)], {"context_length": None}),
        ([TOKENS, pair("tokenizer.ggml.bos_token_id", U32, 2)], {"bos_token_id": 2, "token_count": 3}),
        ([TOKENS, pair("tokenizer.ggml.eos_token_id", U32, 0)], {"eos_token_id": 0, "token_count": 3}),
        ([pair("tokenizer.ggml.bos_token_id", U32, MAX_TOKEN_ID)], {"bos_token_id": MAX_TOKEN_ID}),
        ([pair("tokenizer.ggml.eos_token_id", U32, MAX_TOKEN_ID)], {"eos_token_id": MAX_TOKEN_ID}),
        ([TOKENS, array("tokenizer.ggml.scores", F32, [0, 1, 2])], {"token_count": 3}),
        ([TOKENS, array("tokenizer.ggml.token_type", I32, [0, 1, 2])], {"token_count": 3}),
        ([TOKENS, array("tokenizer.ggml.token_type", U32, [0, 1, 2])], {"token_count": 3}),
        ([TOKENS, array("tokenizer.ggml.merges", STRING, ["a b"] * 7)], {"token_count": 3}),
        ([array("tokenizer.ggml.merges", STRING, ["a b"])], {"token_count": None}),
        ([pair("split.count", U16, 0)], {"split": None}),
        ([pair("split.count", U16, 1), pair("split.no", U16, 0)], {"split": None}),
        ([pair("split.count", U16, 2)], {"split": Split(0, 2, None)}),
        ([pair("split.count", U16, 2), pair("split.no", U16, 1)], {"split": Split(1, 2, None)}),
        ([pair("split.count", U32, 99_999), pair("split.no", U32, 99_998)], {"split": Split(99_998, 99_999, None)}),
        ([pair("split.count", U16, 2), pair("split.tensors.count", I32, 5)], {"split": Split(0, 2, 5)}),
    ],
)
def test_what_the_pairs_say_is_read(pairs: list[bytes], read_as: dict[str, object]) -> None:
    header = read(gguf(pairs, alignment=2**20))
    assert {name: getattr(header, name) for name in read_as} == read_as


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([pair("general.alignment", U32, 2**21)], "general.alignment: is 2097152, expected 1 to 1048576"),
        ([pair("general.alignment", U32, 3)], f"general.alignment: is 3 of kind u32, {POWER}"),
        ([pair("general.alignment", U16, 32)], f"general.alignment: is 32 of kind u16, {POWER}"),
        ([pair("llama.context_length", U32, 2**31)], "llama.context_length: is 2147483648, expected 1 to 2147483647"),
        ([pair("llama.block_count", U32, 513)], "llama.block_count: is 513, expected 0 to 512"),
        ([TOKENS, pair("tokenizer.ggml.bos_token_id", U32, 3)], "tokenizer.ggml.bos_token_id: is 3, expected 0 to 2"),
        ([TOKENS, pair("tokenizer.ggml.eos_token_id", U32, 3)], "tokenizer.ggml.eos_token_id: is 3, expected 0 to 2"),
        (
            [pair("tokenizer.ggml.bos_token_id", U64, MAX_TOKEN_ID + 1)],
            f"tokenizer.ggml.bos_token_id: is {MAX_TOKEN_ID + 1}, expected 0 to {MAX_TOKEN_ID}",
        ),
        (
            [array("tokenizer.ggml.tokens", STRING, []), pair("tokenizer.ggml.bos_token_id", U32, 0)],
            "tokenizer.ggml.bos_token_id: is 0, expected 0 to -1",
        ),
        *(
            ([TOKENS, array(f"tokenizer.ggml.{name}", kind, [0] * count)],
             f"tokenizer.ggml.{name}: is {count} long, expected 3 as there are tokens")
            for name, kind in (("scores", F32), ("token_type", I32)) for count in (2, 4)
        ),
        (
            [TOKENS, array("tokenizer.ggml.scores", I32, [0] * 3)],
            "tokenizer.ggml.scores: is an array of i32, expected f32",
        ),
        (
            [array("tokenizer.ggml.scores", F32, [0] * 3)],
            "tokenizer.ggml.scores: is 3 long, expected none without a vocabulary",
        ),
        *(
            ([array(name, kind, [1])], f"{name}: is an array of {told}, expected string")
            for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges") for kind, told in ((U8, "u8"), (I32, "i32"))
        ),
        ([pair("split.count", U32, 100_000)], "split.count: is 100000, expected 0 to 99999"),
        ([pair("split.count", U16, 2), pair("split.no", U16, 2)], "split.no: is 2, expected 0 to 1"),
        ([pair("split.count", U16, 0), pair("split.no", U16, 1)], "split.no: is 1, expected 0 to 0"),
        ([pair("split.no", U16, 1)], "split.no: is 1, expected 0 to 0"),
    ],
)  # fmt: skip
def test_what_the_pairs_may_not_say_is_refused(pairs: list[bytes], said: str) -> None:
    fault = refusal(gguf(pairs, alignment=2**20))
    assert f"{fault.field}: is {str(fault).partition(' is ')[2]}" == said
    assert fault.offset is not None


@pytest.mark.parametrize("name", ["a", "x" * 64, "qwen2.5-VL_moe", "0"])
def test_architecture_is_a_short_name(name: str) -> None:
    assert read(gguf(architecture=name)).architecture == name


def test_architecture_that_is_none_is_shown_shortly() -> None:
    assert str(refusal(gguf(architecture="x" * 99))).endswith(
        f"is {'x' * 80!r}, expected a short name of ASCII letters"
    )
    assert str(refusal(gguf(architecture=None))).endswith("is missing, expected the name of a model architecture")
