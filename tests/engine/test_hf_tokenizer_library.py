"""The same files in the library that servers decode with: both must read the same text out of the same ids."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from mesh.engine.hf_tokenizer import HfTokenizer, read_hf_tokenizer
from mesh.errors import ModelFileError

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps.",
    "Größere Häuser kosten mehr; naïve café façade über alles.",
    "def main() -> None:\n    return print('hello, world')\n\n",
    "日本語のテキストと emoji 🦊🐕 and Ελληνικά, кириллица.",
] * 4


class Pair(NamedTuple):
    library: Tokenizer
    ours: HfTokenizer

    def text(self, ids: list[int]) -> str:
        return self.library.decode(ids, skip_special_tokens=True)

    def joined(self, ids: list[int]) -> bytes:
        return b"".join(self.ours.pieces[token] for token in ids)


def pair(library: Tokenizer, folder: Path) -> Pair:
    library.save(str(folder / "tokenizer.json"))
    ours = read_hf_tokenizer(folder)
    assert len(ours.pieces) == library.get_vocab_size(with_added_tokens=True)
    return Pair(library, ours)


def add_tokens(library: Tokenizer) -> None:
    """Plain and control tokens beside those the model was trained with."""
    library.add_tokens(["<tool>", "tool call", "Ünicode €"])
    library.add_special_tokens([AddedToken("<|end|>", special=True)])


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    add_tokens(library)
    return pair(library, tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """As Llama 2 has it: bytes for what the vocabulary cannot spell, and the text loses the space it was given."""
    library = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *names], limit_alphabet=60, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    document = json.loads(library.to_str())  # bytes were trained as control tokens, only to have them in the vocabulary
    document["added_tokens"] = document["added_tokens"][:3]
    library = Tokenizer.from_str(json.dumps(document))
    add_tokens(library)
    return pair(library, tmp_path_factory.mktemp("byte-fallback"))


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    add_tokens(library)
    return pair(library, tmp_path_factory.mktemp("metaspace"))


def ids_of(pair: Pair) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(pair.ours.pieces) - 1), max_size=30)


@given(st.data())
def test_byte_level_pieces_are_the_librarys_text(byte_level: Pair, data: st.DataObject) -> None:
    ids = data.draw(ids_of(byte_level))
    # both show U+FFFD for each longest start of a character that was cut off
    assert byte_level.joined(ids).decode(errors="replace") == byte_level.text(ids)


@given(st.text(max_size=60))
def test_byte_level_pieces_give_back_any_text(byte_level: Pair, text: str) -> None:
    ids = byte_level.library.encode(text).ids
    assume("<s>" not in text)
    assert byte_level.joined(ids).decode() == text


@given(st.data())
def test_byte_fallback_pieces_are_the_librarys_text_but_for_one_leading_space(
    byte_fallback: Pair, data: st.DataObject
) -> None:
    """Where the bytes are no UTF-8 the library shows U+FFFD for each byte of the run, sound ones among them too; a
    piece keeps the bytes."""
    characters = st.characters(codec="utf-8").map(
        lambda character: [byte_fallback.library.token_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
    )
    any_id = st.integers(0, len(byte_fallback.ours.pieces) - 1).map(lambda token: [token])
    ids = [token for part in data.draw(st.lists(characters | any_id, max_size=20)) for token in part]
    try:
        text = byte_fallback.joined(ids).decode()
    except UnicodeDecodeError:
        assert "\ufffd" in byte_fallback.text(ids)
        return
    assert byte_fallback.ours.decoder.strip == (" ", 1)
    assert byte_fallback.text(ids) == text.removeprefix(" ")


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=40))
def test_byte_fallback_pieces_give_back_any_text(byte_fallback: Pair, text: str) -> None:
    ids = byte_fallback.library.encode(text).ids
    assume(not any(name in text for name in ("<unk>", "<s>", "</s>")))
    joined = byte_fallback.joined(ids).decode()
    assert joined.removeprefix(" ") == text.removeprefix(" ")


@given(st.data())
def test_metaspace_pieces_are_the_librarys_text_after_any_other_token(metaspace: Pair, data: st.DataObject) -> None:
    ids = data.draw(ids_of(metaspace))
    first = metaspace.library.token_to_id("<tool>")
    assert metaspace.joined([first, *ids]).decode() == metaspace.text([first, *ids])


@given(st.data())
def test_metaspace_text_lacks_only_the_spaces_of_its_first_token(metaspace: Pair, data: st.DataObject) -> None:
    """`▁` of the token that starts a text is taken for the space that was put before it, and left out."""
    ids = [token for token in data.draw(ids_of(metaspace)) if token not in metaspace.ours.special]
    assume(ids and " " not in metaspace.library.id_to_token(ids[0]))  # an added token's own spaces stay
    assert metaspace.ours.decoder.strip == (" ", -1)
    expected = metaspace.joined(ids[:1]).replace(b" ", b"") + metaspace.joined(ids[1:])
    assert metaspace.text(ids) == expected.decode()


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "metaspace"])
def test_control_tokens_are_the_librarys(name: str, request: pytest.FixtureRequest) -> None:
    library, ours = request.getfixturevalue(name)
    listed = {token for token, entry in library.get_added_tokens_decoder().items() if entry.special}
    assert ours.special == listed


@given(st.text("abĠĊÃ©é€ §\u0143\u0144", min_size=1, max_size=6))
def test_one_byte_level_token_is_what_the_library_makes_of_it(spelling: str) -> None:
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    library, ours = both({spelling: 0}, [], decoder)
    assert ours is not None
    assert ours.pieces[0].decode(errors="replace") == library.decode([0])


@given(st.from_regex(r"<0x[0-7+aGé][0-9a-fA-F+]>", fullmatch=True) | st.text("<0x41>", max_size=8))
def test_one_byte_token_is_what_the_library_makes_of_it(spelling: str) -> None:
    library, ours = both({spelling: 0}, [], {"type": "ByteFallback"})
    assert ours is not None
    assert ours.pieces[0].decode(errors="replace") == library.decode([0])


spellings = st.text("abc", min_size=1, max_size=2)


@given(
    st.dictionaries(spellings, st.integers(0, 7), min_size=1, max_size=6),
    st.lists(st.tuples(spellings | st.just(""), st.integers(0, 9), st.booleans()), max_size=5),
)
def test_added_tokens_are_accepted_exactly_where_the_library_takes_the_ids_of_the_file(
    vocab: dict[str, int], tokens: list[tuple[str, int, bool]]
) -> None:
    assume(len(set(vocab.values())) == len(vocab))
    library, ours = both(vocab, tokens, {"type": "Fuse"})
    everything = library.get_vocab(with_added_tokens=True)
    agrees = all(everything[content] == token for content, token, _ in tokens if content)
    if not agrees or len(set(everything.values())) < len(everything):
        assert ours is None
        return
    assert ours is not None
    for token in range(12):
        assert ours.has(token) == (library.id_to_token(token) is not None)
        if ours.has(token):
            assert ours.pieces[token].decode() == library.decode([token])


def both(vocab: dict[str, int], tokens: list[Any], decoder: Any) -> tuple[Tokenizer, HfTokenizer | None]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id_, "content": text, "special": special, **flags} for text, id_, special in tokens],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    text = json.dumps(document)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(text)
        try:
            return Tokenizer.from_str(text), read_hf_tokenizer(Path(folder))
        except ModelFileError:
            return Tokenizer.from_str(text), None
