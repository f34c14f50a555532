"""JSON from strangers, bounded before anything is made of it."""

from __future__ import annotations

import pytest

from mesh.errors import EncodingError
from mesh.identity.document import parse_document


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b'["a",{"b":[]}]', 6),
        (b'"[,{\\""', 1),
        (b'{"a":"\\\\","b":{}}', 6),
        (b"[1,[2,[3]]]", 5),
        (b"  7 ", 0),
    ],
)
def test_strings_commas_and_opening_brackets_are_counted(data: bytes, parts: int) -> None:
    parse_document(data, "it", max_parts=parts)
    if parts:
        with pytest.raises(EncodingError, match=f"it: over {parts - 1} strings and separators"):
            parse_document(data, "it", max_parts=parts - 1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbf{}", "it: begins with a byte order mark"),
        (b'{"a":1,\n"b"}', "it: not JSON at line 2 column 4: expecting ':' delimiter"),
        (b'{"a":1,"a":2}', "it: key 'a' is there twice"),
        (b" " * 65_537, "it: over 65536 bytes"),
        (b"[" * 17 + b"]" * 17, "it: nested deeper than 16"),
        (b'["\\udc00"]', "it: half of a surrogate pair in a text"),
        (b'{"\\udc00":1}', "it: half of a surrogate pair in a text"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, expected: str) -> None:
    with pytest.raises(EncodingError) as caught:
        parse_document(data, "it")
    assert str(caught.value) == expected


def test_what_may_be_nested_is_read() -> None:
    assert parse_document(b"[" * 16 + b"]" * 16, "it")
    assert parse_document('{"é":["ü",{}]}'.encode(), "it") == {"é": ["ü", {}]}
