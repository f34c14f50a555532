from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mesh.engine.gguf_described import GgufConfig, SelfCheck, backend_id, check_tokenizer, tokenizer_digest
from mesh.errors import ModelFileError, UsageError
from mesh.identity.model import read_model
from mesh.schema import canonical
from mesh.schema.ids import ContentId
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slots": 0}, "slots is 0, expected 1 to 64"),
        ({"threads": 0}, "threads is 0"),
        ({"n_ubatch": 512, "n_batch": 512}, "n_batch is 512, expected at least n_ubatch"),
        ({"kv_type": "q3_k"}, "kv_type is 'q3_k', expected one of"),
        ({"context_tokens": 1}, "context_tokens is 1"),
        ({"tokenizer_pre": "x" * 128}, "tokenizer_pre"),
        ({"watts_u": -1}, "watts_u is -1"),
    ],
)
def test_a_configuration_that_cannot_be_followed_names_its_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GgufConfig(Path("model.gguf"), "m", **change)


@pytest.mark.parametrize(("absent", "field"), [("pre", "tokenizer.ggml.pre"), ("eos", "tokenizer.ggml.eos_token_id")])
def test_a_file_that_lacks_what_the_library_would_guess_is_refused(tmp_path: Path, absent: str, field: str) -> None:
    path = write_tiny_gguf(tmp_path / "old.gguf", **{absent: None})
    with pytest.raises(ModelFileError, match=f"old.gguf: {field} is missing") as caught:
        check_tokenizer(read_model(path), GgufConfig(path, "m"))
    assert caught.value.field == field
    check_tokenizer(read_model(path), GgufConfig(path, "m", tokenizer_pre="smollm", eos_id=2))


def test_an_end_id_outside_the_vocabulary_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match="eos_id is 9999"):
        check_tokenizer(read_model(tiny), GgufConfig(tiny, "m", eos_id=9999))


def test_a_context_beyond_the_models_own_is_refused(tiny: Path) -> None:
    assert GgufConfig(tiny, "m").context_of(read_model(tiny)) == 2048
    with pytest.raises(ModelFileError, match="context_length is 2048, expected at least 4096"):
        GgufConfig(tiny, "m", context_tokens=4096).context_of(read_model(tiny))


def test_the_settings_document_is_closed_and_has_an_encoding(tiny: Path) -> None:
    template = ContentId.of_bytes(b"template")
    settings = GgufConfig(tiny, "m").settings(read_model(tiny), template=template, add_bos=False)
    assert canonical.decode(canonical.encode(settings), max_bytes=4096) == settings
    assert settings.keys() == {
        "engine", "context_tokens", "samplers", "tokenizer", "add_bos", "overrides", "template", "template_source",
        "kv_type", "flash_attention", "n_batch", "n_ubatch", "threads", "batch_threads", "use_extra_bufts",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"kv_type": "f16"}, {"flash_attention": False}, {"n_ubatch": 32}, {"threads": 2}, {"batch_threads": 2},
        {"use_extra_bufts": False}, {"context_tokens": 1024}, {"eos_id": 0},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_moves_the_numbers_moves_the_settings(tiny: Path, change: dict[str, Any]) -> None:
    model = read_model(tiny)
    settings = [GgufConfig(tiny, "m", **c).settings(model, template=None, add_bos=False) for c in ({}, change)]
    assert settings[0] != settings[1]


@pytest.mark.parametrize("change", [{"slots": 1}, {"together_always": True}, {"watts_u": 1}], ids=str)
def test_what_moves_no_number_does_not(tiny: Path, change: dict[str, Any]) -> None:
    model = read_model(tiny)
    settings = [GgufConfig(tiny, "m", **c).settings(model, template=None, add_bos=False) for c in ({}, change)]
    assert settings[0] == settings[1]


def test_the_tokenizer_digest_covers_the_tokenizer_and_not_the_template(tmp_path: Path) -> None:
    def digest(name: str, **change: Any) -> bytes:
        return tokenizer_digest(read_model(write_tiny_gguf(tmp_path / f"{name}.gguf", **change)).header.metadata)

    plain = digest("plain")
    assert digest("seed", seed=2) == digest("template", template="x") == plain
    assert len({plain, digest("pre", pre="llama-bpe"), digest("eos", eos=0), digest("bos", add_bos=True)}) == 4


def test_the_backend_id_has_six_parts_that_a_receipt_takes() -> None:
    parts = backend_id("2026.10.11549", bytes(range(32))).split("/")
    assert parts[:3] == ["gguf", "2026.10.11549", "0001020304050607"]
    assert parts[4:] == ["cpu", "none"]


AGREE = {"step": None, "warm": None, "together": None}


@pytest.mark.parametrize(
    ("results", "together", "deterministic", "words"),
    [
        (AGREE, True, True, "bit-identical step, warm, together"),
        ({**AGREE, "together": 3, "repeat": None}, False, True, "differ in together (position 3): serves run one at"),
        ({**AGREE, "step": 1, "repeat": None}, True, False, "serves run together as configured and are not claimed"),
        ({**AGREE, "step": 1, "repeat": 9}, False, False, "repeat (position 9): serves run one at a time and are not"),
    ],
)
def test_the_self_check_says_what_follows_from_it(
    results: dict[str, int | None], together: bool, deterministic: bool, words: str
) -> None:
    check = SelfCheck(results, together)
    assert check.deterministic is deterministic
    assert words in check.reason
