from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.engine.hf_decoder import read_decoder
from mesh.engine.hf_files import MAX_FILE_BYTES, MAX_VALUES, JsonObject
from mesh.engine.hf_tokenizer import MAX_TEMPLATE_BYTES, MAX_VOCABULARY, HfTokenizer, read_hf_tokenizer
from mesh.errors import ModelFileError

Write = Callable[..., Path]

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FUSE, FALLBACK = {"type": "Fuse"}, {"type": "ByteFallback"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def sequence(*decoders: Any) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(decoders)}


def added(token: int, content: str, *, special: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, "special": special, **flags}


def document(vocab: Any, *tokens: dict[str, Any], decoder: Any = None, **model: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": list(tokens),
        "decoder": BYTE_LEVEL if decoder is None else decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], **model},
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(tokenizer: Any, **files: Any) -> Path:
        """`files`: names with `__` for the dot; bytes are written as they are."""
        for name, content in {"tokenizer__json": tokenizer, **files}.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            (tmp_path / name.replace("__", ".")).write_bytes(raw)
        return tmp_path

    return written


def refused(folder: Path, *words: str) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_hf_tokenizer(folder)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("decoder", "spelling", "piece"),
    [
        (BYTE_LEVEL, "Ġthe", b" the"),
        (BYTE_LEVEL, "Ċ", b"\n"),
        (BYTE_LEVEL, "Ã", b"\xc3"),
        (BYTE_LEVEL, "é", b"\xe9"),
        (BYTE_LEVEL, "tool call", b"tool call"),
        (BYTE_LEVEL, "Ġ€", "Ġ€".encode()),
        (sequence(BYTE_LEVEL), "Ġthe", b" the"),
        (sequence(BYTE_LEVEL, FUSE), "Ġthe", b" the"),
        (sequence(SPACE, FALLBACK, FUSE, STRIP), "▁the", b" the"),
        (sequence(SPACE, FALLBACK, FUSE, STRIP), "▁▁▁", b"   "),
        (sequence(SPACE, FALLBACK, FUSE), "<0x0A>", b"\n"),
        (sequence(SPACE, FALLBACK, FUSE), "<0xff>", b"\xff"),
        (sequence(SPACE, FALLBACK, FUSE), "<0x0A>x", b"<0x0A>x"),
        (sequence(SPACE, FALLBACK, FUSE), "<0xAG>", b"<0xAG>"),
        (sequence(SPACE, FUSE), "<0x0A>", b"<0x0A>"),
        (sequence({**SPACE, "pattern": {"String": "ab"}, "content": "é"}), "abab", "éé".encode()),
        (sequence(METASPACE, FALLBACK), "▁é", " é".encode()),
        (METASPACE, "▁a▁b", b" a b"),
        ({**METASPACE, "replacement": "_"}, "_a▁", " a▁".encode()),
        (SPACE, "▁a", b" a"),
        (FALLBACK, "<0x41>", b"A"),
        (FUSE, "▁a", "▁a".encode()),
    ],
)
def test_a_token_becomes_the_bytes_that_its_decoder_makes(
    write: Write, decoder: Any, spelling: str, piece: bytes
) -> None:
    assert read_hf_tokenizer(write(document({spelling: 0}, decoder=decoder))).pieces == (piece,)


@pytest.mark.parametrize(
    ("decoder", "strip"),
    [
        (BYTE_LEVEL, None),
        (sequence(SPACE, FALLBACK, FUSE), None),
        (sequence(SPACE, FALLBACK, FUSE, STRIP), (" ", 1)),
        (sequence(SPACE, FALLBACK, FUSE, {**STRIP, "start": 0}), None),
        (METASPACE, (" ", -1)),
        ({**METASPACE, "prepend_scheme": "never"}, None),
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}, None),
    ],
)
def test_what_the_library_takes_from_the_start_of_a_text_is_told(write: Write, decoder: Any, strip: Any) -> None:
    assert read_hf_tokenizer(write(document({"a": 0}, decoder=decoder))).decoder.strip == strip


@pytest.mark.parametrize(
    ("decoder", "field", "words"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "decoder.type", "WordPiece is not supported"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "decoder.type", "BPEDecoder is not supported"),
        ({"type": "CTC"}, "decoder.type", "CTC is not supported"),
        ({"type": "\x1b[31m"}, "decoder.type", "not supported"),
        ({}, "decoder.type", "missing"),
        ({"type": 7}, "decoder.type", "a number, expected text"),
        ([], "decoder", "a list, expected an object"),
        (sequence(), "decoder.decoders", "0 steps"),
        (sequence(*[SPACE] * 17), "decoder.decoders", "17 steps"),
        ({"type": "Sequence", "decoders": 3}, "decoder.decoders", "a number, expected a list"),
        (sequence(3), "decoder.decoders.0", "a number, expected an object"),
        (sequence(sequence(SPACE)), "decoder.decoders.0.type", "Sequence is not supported"),
        (sequence(BYTE_LEVEL, STRIP), "decoder.decoders.1.type", "Strip after ByteLevel"),
        (sequence(SPACE, BYTE_LEVEL), "decoder.decoders.1.type", "ByteLevel is not supported"),
        (sequence(FALLBACK, SPACE), "decoder.decoders.1.type", "Replace at this place"),
        (sequence(FUSE, FALLBACK), "decoder.decoders.1.type", "ByteFallback at this place"),
        (sequence(FUSE, FUSE), "decoder.decoders.1.type", "Fuse at this place"),
        (sequence(SPACE, STRIP), "decoder.decoders.1.type", "Strip without Fuse"),
        (STRIP, "decoder.type", "Strip without Fuse"),
        (sequence(FUSE, {**STRIP, "stop": 1}), "decoder.decoders.1.stop", "end of a text"),
        (sequence(FUSE, {**STRIP, "start": -1}), "decoder.decoders.1.start", "-1, expected 0 to"),
        (sequence(FUSE, {**STRIP, "content": "  "}), "decoder.decoders.1.content", "2 characters"),
        ({**SPACE, "pattern": {"Regex": "a+"}}, "decoder.pattern", "not a literal text"),
        ({**SPACE, "pattern": {"String": ""}}, "decoder.pattern", "not a literal text"),
        ({**SPACE, "pattern": "x"}, "decoder.pattern", "text, expected an object"),
        ({**SPACE, "content": None}, "decoder.content", "missing"),
        ({**SPACE, "content": "x" * 4}, "decoder.content", "longer than what it replaces"),
        ({**METASPACE, "replacement": None}, "decoder.replacement", "null, expected one character"),
    ],
)
def test_a_decoder_under_which_a_token_has_no_bytes_of_its_own_is_refused(
    write: Write, decoder: Any, field: str, words: str
) -> None:
    assert refused(write(document({"a": 0}, decoder=decoder)), "tokenizer.json", words).field == field


def test_a_tokenizer_without_a_decoder_is_refused(write: Write) -> None:
    assert refused(write({**document({"a": 0}), "decoder": None}), "decoder: none").field == "decoder"


def test_every_byte_has_one_letter_in_the_byte_alphabet(write: Write) -> None:
    decoder = read_decoder(JsonObject("t", "", {"decoder": BYTE_LEVEL}))
    single = [decoder.piece(chr(point)) for point in range(0x21, 0x144)]
    assert {piece for piece in single if len(piece) == 1} == {bytes([byte]) for byte in range(256)}


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


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config", "special_tokens_map", "added_tokens", "config"])
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "number 1e999 is out of range"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON"),
        (b'{"a": 1, "b": {"x": 1, "x": 1}}', "x: there twice in one object"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"),
        (b"[]", "a list, expected an object"),
        (b"null", "null, expected an object"),
        (b'{"a": {"b": ["\\ud83d\\ude00", "\\ud800"]}}', "a.b.1: half of a surrogate pair"),
        (b'{"a": {"\\uDFFF": 1}}', "a.\\udfff: half of a surrogate pair"),
    ],
)
def test_bytes_that_are_not_one_sound_json_object_are_refused(write: Write, name: str, raw: bytes, words: str) -> None:
    refused(write(**{"tokenizer": document({"a": 0}), f"{name}__json": raw}), f"{name}.json: ", words)


def test_a_file_over_the_limit_is_refused_before_it_is_parsed(write: Write) -> None:
    folder = write(document({"a": 0}))
    os.truncate(folder / "tokenizer.json", MAX_FILE_BYTES + 1)
    refused(folder, f"tokenizer.json: more than {MAX_FILE_BYTES} bytes")
    write(document({"a": 0}), chat_template__jinja=b" " * (MAX_TEMPLATE_BYTES + 1))
    refused(folder, f"chat_template.jinja: more than {MAX_TEMPLATE_BYTES} bytes")


@pytest.mark.parametrize("item", [b"[],", b"{},", b"1,", b"["])
def test_a_file_of_very_many_values_is_refused_before_it_is_parsed(write: Write, item: bytes) -> None:
    refused(write(b'{"a": [' + item * (MAX_VALUES + 1)), f"tokenizer.json: more than {MAX_VALUES} values")


def test_a_path_that_leads_to_no_regular_file_is_refused(write: Write, tmp_path: Path) -> None:
    refused(tmp_path, "no tokenizer.json in this folder")
    folder = write(document({"a": 0}))
    (folder / "tokenizer_config.json").mkdir()
    refused(folder, "tokenizer_config.json: not a regular file")
    (folder / "tokenizer_config.json").rmdir()
    os.mkfifo(folder / "tokenizer_config.json")
    refused(folder, "tokenizer_config.json: not a regular file")
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").symlink_to("nowhere")
    refused(folder, "tokenizer_config.json: No such file")
    (folder / "tokenizer_config.json").unlink()
    write(document({"a": 0}), chat_template__jinja=b"\x80")
    refused(folder, "chat_template.jinja: not UTF-8")


def test_a_small_file_cannot_ask_for_much_memory(write: Write) -> None:
    folder = write(document({"a": MAX_VOCABULARY - 1}))
    tracemalloc.start()
    try:
        tokenizer = read_hf_tokenizer(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(tokenizer.pieces) == MAX_VOCABULARY
    assert peak < 128 * 1024 * 1024


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FULL = {
    "tokenizer.json": document(
        {"a": 0, "▁b": 1, "<0x0A>": 2}, added(3, "c", special=True), decoder=sequence(SPACE, FALLBACK, FUSE, STRIP)
    ),
    "tokenizer_config.json": {
        "bos_token": {"content": "a"},
        "additional_special_tokens": ["c"],
        "added_tokens_decoder": {"3": {"content": "c", "special": True}},
        "chat_template": [{"name": "default", "template": "x"}],
    },
    "special_tokens_map.json": {"eos_token": "c"},
    "added_tokens.json": {"d": 4},
    "generation_config.json": {"eos_token_id": [3, 4]},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def read_or_refuse(files: dict[str, bytes]) -> HfTokenizer | None:
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in files.items():
            (Path(folder) / name).write_bytes(raw)
        try:
            tokenizer: HfTokenizer | None = read_hf_tokenizer(Path(folder))
        except ModelFileError as e:
            fault, tokenizer = str(e), None
    if tokenizer is None:
        assert fault.isprintable()
        assert len(fault) < 500
        return None
    assert len(tokenizer.present) == len(tokenizer.pieces)
    silent = tokenizer.special | {token for token, there in enumerate(tokenizer.present) if not there}
    assert all(tokenizer.pieces[token] == b"" for token in silent)
    assert all(tokenizer.has(token) for token in tokenizer.special)
    (tokenizer.bos + tokenizer.eos + (tokenizer.template or "")).encode()
    return tokenizer


@given(st.data())
def test_any_value_at_any_place_is_read_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FULL)))
    place = data.draw(st.sampled_from(places(FULL[name])))
    files = {**FULL, name: replaced(FULL[name], place, data.draw(json_values))}
    read_or_refuse({name: json.dumps(content).encode() for name, content in files.items()})


@given(st.data())
def test_any_damaged_bytes_are_read_or_refused(data: st.DataObject) -> None:
    files = {name: json.dumps(content).encode() for name, content in FULL.items()}
    name = data.draw(st.sampled_from(sorted(files)))
    raw = files[name]
    at = data.draw(st.integers(0, len(raw)))
    cut = data.draw(st.integers(0, 8))
    files[name] = raw[:at] + data.draw(st.binary(max_size=8)) + raw[at + cut :]
    read_or_refuse(files)


@settings(max_examples=50)
@given(st.binary(max_size=200), st.sampled_from(sorted(FULL)))
def test_any_bytes_are_read_or_refused(raw: bytes, name: str) -> None:
    read_or_refuse({**{name: json.dumps(content).encode() for name, content in FULL.items()}, name: raw})


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 300), min_size=1, max_size=20))
def test_ids_survive_whatever_their_order_and_gaps(vocab: dict[str, int]) -> None:
    tokenizer = read_or_refuse({"tokenizer.json": json.dumps(document(vocab, decoder=FUSE)).encode()})
    if len(set(vocab.values())) < len(vocab):
        assert tokenizer is None
        return
    assert tokenizer is not None
    assert {token for token in range(302) if tokenizer.has(token)} == set(vocab.values())
    assert all(tokenizer.pieces[token] == spelling.encode() for spelling, token in vocab.items())
