from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mesh.engine.hf_decoder import read_decoder
from mesh.engine.hf_files import JsonObject
from mesh.engine.hf_tokenizer import read_hf_tokenizer
from tests.support.hf_folder import (
    BYTE_LEVEL,
    FALLBACK,
    FUSE,
    METASPACE,
    SPACE,
    STRIP,
    document,
    refused,
    sequence,
    write_folder,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return partial(write_folder, tmp_path)


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
