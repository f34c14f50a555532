from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.hf_tokenizer import MAX_VOCABULARY, read_hf_tokenizer
from tests.support.hf_folder import (
    added,
    document,
    refused,
    write_folder,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_folder, tmp_path)


def test_control_tokens_and_gaps_add_nothing_and_gaps_are_unknown(write: Write) -> None:
    folder = write(document({"a": 0, "b": 3, "c": 4}, added(3, "b"), added(4, "c", special=True), added(5, "Ġd")))
    tokenizer = read_hf_tokenizer(folder)
    assert tokenizer.pieces == (b"a", b"", b"", b"b", b"", b" d")
    assert tokenizer.special == {4}
    assert tokenizer.present == bytes([1, 0, 0, 1, 1, 1])
    assert [token for token in range(-2, 9) if tokenizer.has(token)] == [0, 3, 4, 5]


def test_a_token_named_for_a_purpose_in_any_file_is_a_control_token(write: Write) -> None:
    vocab = {name: i for i, name in enumerate(["a", "bos", "eos", "pad", "unk", "more", "listed", "extra", "old"])}
    tokenizer = read_hf_tokenizer(
        write(
            document(vocab, added(2, "eos")),
            tokenizer_config__json={
                "bos_token": "bos",
                "eos_token": {"content": "eos", "lstrip": False},
                "pad_token": "not in the vocabulary",
                "mask_token": None,
                "additional_special_tokens": ["more", {"content": "more"}],
                "extra_special_tokens": {"image_token": "extra"},
                "added_tokens_decoder": {"6": {"content": "listed", "special": True}, "0": {"content": "a"}},
            },
            special_tokens_map__json={"pad_token": "pad", "unk_token": "unk"},
            added_tokens__json={"old": 8, "new": 9},
        )
    )
    assert tokenizer.special == {1, 2, 3, 4, 5, 6, 7}
    assert (tokenizer.bos, tokenizer.eos) == ("bos", "eos")
    assert tokenizer.pieces[8:] == (b"old", b"new")


def test_spellings_come_from_the_special_map_where_the_configuration_has_none(write: Write) -> None:
    maps = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    folder = write(document({"a": 0}), tokenizer_config__json={"eos_token": "a"}, special_tokens_map__json=maps)
    tokenizer = read_hf_tokenizer(folder)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eos_ids) == ("<s>", "a", {0})
    (folder / "special_tokens_map.json").unlink()
    assert read_hf_tokenizer(folder).bos == ""


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        (None, None, {1}),
        ({"eos_token_id": 5}, {"eos_token_id": 7}, {1, 5}),
        ({"eos_token_id": [5, 1, 900]}, None, {1, 5, 900}),
        ({"eos_token_id": None}, {"eos_token_id": 7}, {1}),
        ({}, {"eos_token_id": 7}, {1}),
        (None, {"eos_token_id": [7]}, {1, 7}),
        (None, {"text_config": {"eos_token_id": 8}}, {1, 8}),
        (None, {"eos_token_id": 7, "text_config": {"eos_token_id": 8}}, {1, 7}),
    ],
)
def test_the_ids_that_end_an_output_are_those_that_a_server_stops_at(
    write: Write, generation: Any, config: Any, ids: set[int]
) -> None:
    files = {"generation_config__json": generation, "config__json": config}
    folder = write(
        document({"a": 0, "</s>": 1}),
        tokenizer_config__json={"eos_token": "</s>"},
        **{name: content for name, content in files.items() if content is not None},
    )
    assert read_hf_tokenizer(folder).eos_ids == ids


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"tokenizer_config__json": {"chat_template": None}}, None),
        ({"tokenizer_config__json": {"chat_template": "one"}}, "one"),
        ({"tokenizer_config__json": {"chat_template": []}}, None),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
                }
            },
            "d",
        ),
        ({"tokenizer_config__json": {"chat_template": [{"name": "rag", "template": "r"}]}}, None),
        ({"tokenizer_config__json": {"chat_template": "one"}, "chat_template__jinja": "ü\r\n".encode()}, "ü\r\n"),
    ],
)
def test_the_template_of_its_own_file_wins_and_of_several_the_default(
    write: Write, files: Any, template: str | None
) -> None:
    assert read_hf_tokenizer(write(document({"a": 0}), **files)).template == template


@pytest.mark.parametrize(
    ("vocab", "spellings"), [({"a": 0, "b": 1}, (b"a", b"b")), ([["x", -1.5], ["y", 0], ["x", 0]], (b"x", b"y", b"x"))]
)
def test_an_early_file_that_does_not_name_its_model_is_known_by_its_shape(
    write: Write, vocab: Any, spellings: tuple[bytes, ...]
) -> None:
    assert read_hf_tokenizer(write(document(vocab, type=None))).pieces == spellings


@pytest.mark.parametrize(
    ("tokenizer", "field", "words"),
    [
        ({**document({}), "model": None}, "model", "missing"),
        ({**document({}), "model": "BPE"}, "model", "text, expected an object"),
        (document({"a": 0}, type="WordPiece"), "model.type", "model WordPiece is not supported"),
        ({**document({}), "model": {"vocab": {"a": 0}}}, "model.type", "model unnamed is not supported"),
        (document({}), "model.vocab", "missing or empty"),
        (document([["a", 0.5]]), "model.vocab", "a list, expected an object"),
        (document({"a": 0}, type="Unigram"), "model.vocab", "an object, expected a list"),
        (document([["a"]], type="Unigram"), "model.vocab.0", "expected a list of text and score"),
        (document([["a", True]], type="Unigram"), "model.vocab.0.1", "true, expected a number"),
        (document([[3, 0]], type="Unigram"), "model.vocab.0", "expected a list of text and score"),
        (document({"a": "0"}), "model.vocab.a", "text, expected an integer"),
        (document({"a": True}), "model.vocab.a", "true, expected an integer"),
        (document({"a": 1.0}), "model.vocab.a", "a number, expected an integer"),
        (document({"a": None}), "model.vocab.a", "null, expected an integer"),
        (document({"a": -1}), "model.vocab.a", "-1, expected 0 to"),
        (document({"a": MAX_VOCABULARY}), "model.vocab.a", f"expected 0 to {MAX_VOCABULARY - 1}"),
        (document({"a": 10**3000}), "model.vocab.a", "0000..., expected 0 to"),
        (document({"\x1b]0;": -1}), "model.vocab.\\x1b]0;", "-1, expected"),
        (document({"a": 0, "b": 0}), "model.vocab.b", "id 0 twice, for 'a' too"),
        ({**document({"a": 0}), "added_tokens": {}}, "added_tokens", "an object, expected a list"),
        ({**document({"a": 0}), "added_tokens": [7]}, "added_tokens.0", "a number, expected an object"),
        ({**document({"a": 0}), "added_tokens": [{"content": "b"}]}, "added_tokens.0.id", "missing"),
        ({**document({"a": 0}), "added_tokens": [{"id": 1}]}, "added_tokens.0.content", "missing"),
        (document({"a": 0}, added(2**40, "b")), "added_tokens.0.id", "expected 0 to"),
        (document({"a": 0}, {**added(1, "b"), "special": 1}), "added_tokens.0.special", "expected true or false"),
        (document({"a": 0}, added(1, "a")), "added_tokens.0.content", "id 1 for 'a', expected 0"),
        (document({"a": 0}, added(0, "b")), "added_tokens.0.content", "id 0 for 'b', expected 1"),
        (document({"a": 0}, added(5, "b")), "added_tokens.0.content", "id 5 for 'b', expected 1"),
        (document({"a": 0, "b": 2}, added(2, "c")), "added_tokens.0.content", "id 2 twice, for 'b' and 'c'"),
    ],
)
def test_a_malformed_vocabulary_names_its_field(write: Write, tokenizer: Any, field: str, words: str) -> None:
    assert refused(write(tokenizer), "tokenizer.json: " + field, words).field == field


@pytest.mark.parametrize(
    ("name", "content", "field", "words"),
    [
        ("tokenizer_config", {"eos_token": 7}, "eos_token", "a number, expected text or an object"),
        ("tokenizer_config", {"eos_token": {"content": 7}}, "eos_token.content", "a number, expected text"),
        ("tokenizer_config", {"additional_special_tokens": "x"}, "additional_special_tokens", "expected a list"),
        ("tokenizer_config", {"additional_special_tokens": [1]}, "additional_special_tokens.0", "expected text"),
        ("tokenizer_config", {"chat_template": {"default": "x"}}, "chat_template", "an object, expected text"),
        ("tokenizer_config", {"chat_template": ["x"]}, "chat_template.0", "text, expected an object"),
        ("tokenizer_config", {"chat_template": [{"name": "x"}]}, "chat_template.0.template", "missing"),
        ("tokenizer_config", {"added_tokens_decoder": []}, "added_tokens_decoder", "expected an object"),
        ("tokenizer_config", {"added_tokens_decoder": {"-1": {}}}, "added_tokens_decoder.-1", "expected an id below"),
        ("tokenizer_config", {"added_tokens_decoder": {"01": {}}}, "added_tokens_decoder.01", "expected an id below"),
        ("tokenizer_config", {"added_tokens_decoder": {"9999999999": {}}}, None, "expected an id below"),
        ("tokenizer_config", {"added_tokens_decoder": {"0": {}}}, "added_tokens_decoder.0.content", "missing"),
        ("tokenizer_config", {"added_tokens_decoder": {"0": {"content": "b"}}}, None, "id 0 for 'b', expected 1"),
        ("special_tokens_map", {"bos_token": []}, "bos_token", "a list, expected text or an object"),
        ("added_tokens", {"b": "1"}, "b", "text, expected an integer"),
        ("added_tokens", {"b": 10**9}, "b", "expected 0 to"),
        ("added_tokens", {"a": 4}, "a", "id 4 for 'a', expected 0"),
        ("generation_config", {"eos_token_id": "1"}, "eos_token_id", "text, expected an integer"),
        ("generation_config", {"eos_token_id": [1, -1]}, "eos_token_id.1", "-1, expected 0 to"),
        ("config", {"text_config": 4}, "text_config", "a number, expected an object"),
    ],
)
def test_a_malformed_side_file_names_its_field(
    write: Write, name: str, content: Any, field: str | None, words: str
) -> None:
    fault = refused(write(document({"a": 0}), **{f"{name}__json": content}), f"{name}.json: ", words)
    assert field is None or fault.field == field


def test_the_digest_is_of_what_decides_and_not_of_how_it_is_written(write: Write) -> None:
    base = document({"a": 0, "é": 1})
    config = {"eos_token": "a", "chat_template": "one"}
    folder = write(base, tokenizer_config__json=config)
    digest = read_hf_tokenizer(folder).digest
    assert len(digest) == 32

    shuffled = json.dumps(dict(reversed(base.items())), indent=3, ensure_ascii=False).encode()
    assert read_hf_tokenizer(write(shuffled)).digest == digest
    write(base, tokenizer_config__json={**config, "chat_template": "two"}, chat_template__jinja=b"three")
    assert read_hf_tokenizer(folder).digest == digest
    write(base, special_tokens_map__json={}, generation_config__json={"eos_token_id": 1})
    assert read_hf_tokenizer(folder).digest == digest

    changes: list[dict[str, Any]] = [
        {"tokenizer": document({"a": 1, "é": 0})},
        {"tokenizer": {**base, "normalizer": {"type": "NFC"}}},
        {"tokenizer": base, "tokenizer_config__json": {**config, "add_bos_token": True}},
        {"tokenizer": base, "tokenizer_config__json": config, "special_tokens_map__json": {"bos_token": "a"}},
        {"tokenizer": base, "special_tokens_map__json": {}, "added_tokens__json": {"b": 2}},
    ]
    digests = {digest} | {read_hf_tokenizer(write(**change)).digest for change in changes}
    assert len(digests) == len(changes) + 1
