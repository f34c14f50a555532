"""The text side of a Hugging Face model folder: what each id spells, which ids are control tokens, the chat template.

The files are read as data. No tokenizer library runs, so text is not made into ids here; that is asked of the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from mesh.engine.hf_decoder import PieceDecoder, read_decoder
from mesh.engine.hf_files import JsonObject, kind_of, read_json, read_text, shown
from mesh.errors import ModelFileError

MAX_VOCABULARY: Final = 2**22  # ids; the largest published vocabularies have half a million
MAX_TEMPLATE_BYTES: Final = 4 * 1024 * 1024

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
_SPECIAL_MAP, _ADDED = "special_tokens_map.json", "added_tokens.json"
_TEMPLATE = "chat_template.jinja"

_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTED: Final = ("additional_special_tokens", "extra_special_tokens")
_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class HfTokenizer:
    """`pieces` has, by id, the bytes that the id adds to a text: none for control tokens and for ids within the range
    that the vocabulary does not have; `present` has a byte per id, 1 where it has it. Pieces put together are the text,
    but for what `decoder.strip` takes from the start of a text that nothing precedes.

    `digest`: `tokenizer_digest` of the files. `eos_ids` end an output unless a request says otherwise. `bos` and `eos`
    are spellings, "" where there is none.
    """

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    present: bytes
    digest: bytes
    template: str | None
    bos: str
    eos: str
    eos_ids: frozenset[int]
    decoder: PieceDecoder

    def has(self, token: int) -> bool:
        """Whether the vocabulary has this id."""
        return 0 <= token < len(self.present) and self.present[token] == 1


def read_hf_tokenizer(folder: Path) -> HfTokenizer:
    """Raises ModelFileError, naming the file and the field, where a file is missing, malformed, contradicts another or
    asks for a decoder under which a token has no bytes of its own."""
    tokenizer = read_json(folder, TOKENIZER)
    if tokenizer is None:
        raise ModelFileError(f"{folder.name}: no {TOKENIZER} in this folder")
    config = read_json(folder, CONFIG) or JsonObject(CONFIG, "", {})
    special_map = read_json(folder, _SPECIAL_MAP) or JsonObject(_SPECIAL_MAP, "", {})
    added = read_json(folder, _ADDED) or JsonObject(_ADDED, "", {})

    decoder = read_decoder(tokenizer)
    vocabulary = _model_vocabulary(tokenizer)
    vocabulary.add_listed(tokenizer)
    vocabulary.add_configured(config)
    vocabulary.add_plain(added)
    for spelling in (*_special_spellings(config), *_special_spellings(special_map)):
        if spelling in vocabulary.ids:
            vocabulary.special.add(vocabulary.ids[spelling])

    size = max(vocabulary.spellings) + 1
    pieces, present = [b""] * size, bytearray(size)
    for token, spelling in vocabulary.spellings.items():
        present[token] = 1
        if token not in vocabulary.special:
            pieces[token] = decoder.piece(spelling)
    bos, eos = (_spelling(config, key) or _spelling(special_map, key) or "" for key in ("bos_token", "eos_token"))
    return HfTokenizer(
        pieces=tuple(pieces),
        special=frozenset(vocabulary.special),
        present=bytes(present),
        digest=tokenizer_digest(tokenizer, config, special_map, added),
        template=_template(folder, config),
        bos=bos,
        eos=eos,
        eos_ids=frozenset(_eos_ids(folder, vocabulary.ids.get(eos))),
        decoder=decoder,
    )


def tokenizer_digest(*files: JsonObject) -> bytes:
    """32 bytes: BLAKE3 over the files, sorted by name, each as name and content with their lengths (8 bytes, little
    endian). A content is its JSON without the field `chat_template`: keys in the order of their code points, no spaces,
    nothing escaped that need not be, as UTF-8. A file that is not there counts as an empty object."""
    hasher = blake3()
    for file in sorted(files, key=lambda file: file.label):
        values = {key: value for key, value in file.values.items() if key != "chat_template"}
        try:
            content = json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except RecursionError:
            raise ModelFileError(f"{file.label}: nested too deep") from None
        for part in (file.label.encode(), content.encode()):
            hasher.update(len(part).to_bytes(8, "little")).update(part)
    return hasher.digest()


@dataclass(slots=True)
class _Vocabulary:
    """Ids and spellings while they are gathered. `model_size` is the number of entries before anything was added."""

    spellings: dict[int, str]
    ids: dict[str, int]
    model_size: int
    special: set[int] = field(default_factory=set)
    last_added: int = -1

    def add_listed(self, tokenizer: JsonObject) -> None:
        for i, item in enumerate(tokenizer.array("added_tokens") or []):
            entry = tokenizer.within(f"added_tokens.{i}", item)
            token = entry.integer("id", minimum=0, maximum=MAX_VOCABULARY - 1)
            content = entry.text("content")
            if token is None or content is None:
                raise entry.fault("id" if token is None else "content", "missing")
            self._add(entry, "content", token, content, special=entry.flag("special"))

    def add_configured(self, config: JsonObject) -> None:
        decoder = config.section("added_tokens_decoder")
        if decoder is None:
            return
        for key in decoder.values:
            if not _ID.fullmatch(key) or int(key) >= MAX_VOCABULARY:
                raise decoder.fault(key, f"expected an id below {MAX_VOCABULARY}")
        for key in sorted(decoder.values, key=int):
            entry = decoder.within(key, decoder.values[key])
            content = entry.text("content")
            if content is None:
                raise entry.fault("content", "missing")
            self._add(entry, "content", int(key), content, special=entry.flag("special"))

    def add_plain(self, added: JsonObject) -> None:
        pairs = [
            (added.checked_integer(content, token, minimum=0, maximum=MAX_VOCABULARY - 1), content)
            for content, token in added.values.items()
        ]
        for token, content in sorted(pairs):
            self._add(added, content, token, content, special=False)

    def _add(self, where: JsonObject, key: str, token: int, content: str, *, special: bool) -> None:
        """A token that is added to the model's own. Libraries take the id from the file only where the model has the
        spelling; else they count on, whatever the file says. A file that says another id means other text by its ids
        than the server does."""
        if not content:
            return  # ignored by libraries too
        known = self.ids.get(content)
        if known is None:
            known = max(self.last_added + 1, self.model_size)
            if known in self.spellings:
                raise where.fault(key, f"id {known} twice, for {_quoted(self.spellings[known])} and {_quoted(content)}")
            if known == token:
                self.spellings[token], self.ids[content] = content, token
        if known != token:
            raise where.fault(key, f"id {token} for {_quoted(content)}, expected {known}")
        self.last_added = max(self.last_added, token)
        if special:
            self.special.add(token)


def _model_vocabulary(tokenizer: JsonObject) -> _Vocabulary:
    model = tokenizer.section("model")
    if model is None:
        raise tokenizer.fault("model", "missing")
    vocab, kind = model.values.get("vocab"), model.text("type")
    if kind is None:  # early files do not say
        kind = "Unigram" if isinstance(vocab, list) else "BPE" if "merges" in model.values else "unnamed"
    if kind not in ("BPE", "Unigram", "WordLevel"):
        raise model.fault("type", f"model {shown(kind)} is not supported, expected BPE, Unigram or WordLevel")
    if not vocab:
        raise model.fault("vocab", "missing or empty")
    if kind == "Unigram":
        return _scored(model)
    entries = model.within("vocab", vocab)
    if len(entries.values) > MAX_VOCABULARY:
        raise model.fault("vocab", f"{len(entries.values)} entries, expected at most {MAX_VOCABULARY}")
    spellings: dict[int, str] = {}
    for spelling, value in entries.values.items():
        token = entries.checked_integer(spelling, value, minimum=0, maximum=MAX_VOCABULARY - 1)
        if token in spellings:
            raise entries.fault(spelling, f"id {token} twice, for {_quoted(spellings[token])} too")
        spellings[token] = spelling
    return _Vocabulary(spellings, dict(entries.values), len(spellings))


def _scored(model: JsonObject) -> _Vocabulary:
    """Unigram: a list of spelling and score, the place is the id."""
    items = model.array("vocab") or []
    if len(items) > MAX_VOCABULARY:
        raise model.fault("vocab", f"{len(items)} entries, expected at most {MAX_VOCABULARY}")
    spellings: dict[int, str] = {}
    for token, item in enumerate(items):
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
            raise model.fault(f"vocab.{token}", f"{kind_of(item)}, expected a list of text and score")
        if not isinstance(item[1], int | float) or isinstance(item[1], bool):
            raise model.fault(f"vocab.{token}.1", f"{kind_of(item[1])}, expected a number")
        spellings[token] = item[0]
    return _Vocabulary(spellings, {spelling: token for token, spelling in spellings.items()}, len(spellings))


def _special_spellings(file: JsonObject) -> Iterator[str]:
    """Tokens that a file names for a purpose. Libraries make control tokens of them all."""
    for key in _NAMED:
        if spelling := _spelling(file, key):
            yield spelling
    for key in _LISTED:
        value = file.values.get(key)
        named: Iterable[tuple[str, Any]] = ()
        if isinstance(value, dict):
            named = value.items()
        elif value is not None:
            named = ((str(i), item) for i, item in enumerate(file.array(key) or []))
        for inner, item in named:
            if spelling := _spelling_of(file, f"{key}.{inner}", item):
                yield spelling


def _spelling(file: JsonObject, key: str) -> str | None:
    return _spelling_of(file, key, file.values.get(key))


def _spelling_of(file: JsonObject, key: str, value: object) -> str | None:
    """A token is named by its spelling, or by an object that has it as `content`."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return file.within(key, value).text("content")
    raise file.fault(key, f"{kind_of(value)}, expected text or an object with content")


def _template(folder: Path, config: JsonObject) -> str | None:
    """The file of its own wins, as in libraries; of several, the one called `default`."""
    source = read_text(folder, _TEMPLATE, max_bytes=MAX_TEMPLATE_BYTES)
    if source is not None:
        return source
    value = config.values.get("chat_template")
    if not isinstance(value, list):
        return config.text("chat_template")
    found = None
    for i, item in enumerate(value):
        entry = config.within(f"chat_template.{i}", item)
        name, template = entry.text("name"), entry.text("template")
        if name is None or template is None:
            raise entry.fault("name" if name is None else "template", "missing")
        found = template if name == "default" else found
    return found


def _eos_ids(folder: Path, eos: int | None) -> Iterator[int]:
    """The tokenizer's own, and those of generation_config.json; only where that file is not there, config.json's."""
    if eos is not None:
        yield eos
    file = read_json(folder, "generation_config.json")
    if file is None:
        file = read_json(folder, "config.json")
        if file is not None and file.values.get("eos_token_id") is None:
            file = file.section("text_config")
    value = None if file is None else file.values.get("eos_token_id")
    if file is None or value is None:
        return
    for i, token in enumerate(value if isinstance(value, list) else [value]):
        key = f"eos_token_id.{i}" if isinstance(value, list) else "eos_token_id"
        yield file.checked_integer(key, token, minimum=0, maximum=MAX_VOCABULARY - 1)


def _quoted(spelling: str) -> str:
    return f"'{shown(spelling, 40)}'"
