from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.engine.hf_files import MAX_FILE_BYTES, MAX_VALUES
from mesh.engine.hf_tokenizer import MAX_TEMPLATE_BYTES, MAX_VOCABULARY, HfTokenizer, read_hf_tokenizer
from mesh.errors import ModelFileError
from tests.support.examples import examples
from tests.support.hf_folder import (
    FALLBACK,
    FUSE,
    SPACE,
    STRIP,
    added,
    document,
    refused,
    sequence,
    write_folder,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_folder, tmp_path)


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


@settings(max_examples=examples(50))
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
