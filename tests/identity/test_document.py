"""JSON from strangers, bounded before anything is made of it."""

from __future__ import annotations

import json

import pytest

from mesh.errors import EncodingError
from mesh.identity.document import MAX_DEPTH, MAX_DIGITS, MAX_DOCUMENT_BYTES, parse_document


def test_bounds_are_those_that_are_written_down():
    assert (MAX_DOCUMENT_BYTES, MAX_DEPTH, MAX_DIGITS) == (65_536, 16, 16)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b" " * (MAX_DOCUMENT_BYTES + 1), "x: over 65536 bytes"),
        (b"\xef\xbb\xbf[]", "x: begins with a byte order mark"),
        (b"ab\xff", "x: not UTF-8 at byte 2"),
        (b"{]", "x: not JSON at line 1 column 2: expecting property name enclosed in double quotes"),
        (b'{"a":1,\n"b"}', "x: not JSON at line 2 column 4: expecting ':' delimiter"),
        (b'{"a": 1, "b": 2, "a": 3}', "x: key 'a' is there twice"),
        (b'{"b": 1, "a": 2, "a": 3}', "x: key 'a' is there twice"),
        (b"[NaN]", "x: NaN is not JSON"),
        (b"[" * 17 + b"]" * 17, "x: nested deeper than 16"),
        (b'{"a":' * 16 + b"{}" + b"}" * 16, "x: nested deeper than 16"),
        (b"[" * 30_000, "x: nested deeper than 16"),
        (b'["\\ud800"]', "x: half of a surrogate pair in a text"),
        (b'{"\\udfff": 1}', "x: half of a surrogate pair in a text"),
        (b'"\\ud800"', "x: half of a surrogate pair in a text"),
    ],
)
def test_a_document_is_refused_in_words_that_say_where(data, said):
    with pytest.raises(EncodingError) as caught:
        parse_document(data, "x")
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"7", 0), (b'"a"', 1), (b"[]", 1), (b'["a","b"]', 4), (b'{"a":[1,2]}', 4), (b'["a\\",[","b"]', 4),
        (b'[{"a":{}},[[]]]', 7), (b"[" + b",".join([b"1"] * 1000) + b"]", 1000), (b'[""]', 2), (b'["\\\\",1]', 3),
        (b'"[,{\\""', 1), (b'{"a":"\\\\","b":{}}', 6),
    ],
)  # fmt: skip
def test_parts_of_a_document_are_counted_before_it_is_made(data, parts):
    assert parse_document(data, "x", max_parts=parts) == json.loads(data)
    assert parse_document(data, "x", max_parts=parts + 1) == json.loads(data)
    if parts:
        with pytest.raises(EncodingError, match=rf"^x: over {parts - 1} strings and separators$"):
            parse_document(data, "x", max_parts=parts - 1)


def test_a_reader_of_documents_has_bounds_and_numbers_of_its_own():
    assert parse_document(b"[[5]]", "x", max_bytes=5, max_depth=2) == [[5]]
    with pytest.raises(EncodingError, match=r"^x: over 4 bytes$"):
        parse_document(b"[[5]]", "x", max_bytes=4)
    with pytest.raises(EncodingError, match=r"^x: nested deeper than 1$"):
        parse_document(b"[[5]]", "x", max_depth=1)
    assert parse_document(b"[5, 1.5]", "x", integer=lambda text: -int(text), fraction=lambda text: 0.0) == [-5, 0.0]


def test_a_key_that_is_there_twice_is_shown_shortly():
    name = "k" * 100
    with pytest.raises(EncodingError) as caught:
        parse_document(json.dumps({name: 1})[:-1].encode() + b", " + json.dumps({name: 2})[1:].encode(), "x")
    assert str(caught.value) == f"x: key '{'k' * 80}' is there twice"


def test_a_document_is_the_value_that_it_spells():
    deepest: object = 7
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    assert parse_document(json.dumps(deepest).encode(), "x") == deepest
    assert parse_document(b" " * (MAX_DOCUMENT_BYTES - 1) + b"7", "x") == 7
    found = parse_document(b'{"a": [1234567890123456, 12345678901234567, 1.0, true, null, "\\ud83d\\ude00"]}', "x")
    assert found == {"a": [1234567890123456, 12345678901234567.0, 1.0, True, None, "\U0001f600"]}
    assert [type(item) for item in found["a"][:3]] == [int, float, float]
    assert [type(item) for item in parse_document(b"[-123456789012345, 0, 12]", "x")] == [int] * 3
    many = {str(number): number for number in range(1000)}
    assert parse_document(json.dumps(many).encode(), "x") == many
    assert parse_document('{"é":["ü",{}]}'.encode(), "x") == {"é": ["ü", {}]}
