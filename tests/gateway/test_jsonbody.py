"""Bodies from anyone: one reading, bounded work."""

from __future__ import annotations

import gzip
import zlib
from decimal import Decimal

import pytest

from mesh.errors import BadRequest
from mesh.gateway.jsonbody import MAX_GZIP_MEMBERS, inflate, parse_object


def fault(data: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_object(data)
    return caught.value


@pytest.mark.parametrize(
    "data", [b'{"cap":1,"cap":9}', b'{"a":{"m":1,"m":1}}', b'{"a":[{"x":0,"x":0}]}', b'{"a":0,"\\u0061":0}']
)
def test_repeated_key_is_refused_at_any_depth(data: bytes) -> None:
    assert fault(data).code == "duplicate_key"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":0.' + b"9" * 5000 + b"}",
        b'{"a":1e99999999999999999999}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":["\\udfff x"]}',
        b'{"\\ud83d":1}',
        b"\xef\xbb\xbf{}",
        b'{"a":1}x',
        b'{"a":1}}',
        b'{"a":1} {}',
        b'{"a":1}\x0b',
        b"",
        b"[]",
        b"null",
    ],
)
def test_malformed_body_is_refused(data: bytes) -> None:
    assert fault(data).code == "malformed_body"


def test_message_about_a_body_does_not_quote_it() -> None:
    assert "secret" not in str(fault(b'{"a": "my secret" oops}'))


def test_floats_are_exact() -> None:
    assert parse_object(b'{"a":0.7,"b":1e2,"c":7}') == {"a": Decimal("0.7"), "b": Decimal(100), "c": 7}


def test_spaces_around_an_object_say_nothing() -> None:
    assert parse_object(b' \t{"a":1}\r\n') == parse_object(b'{"a":1}\n') == {"a": 1}


def test_surrogate_pair_is_a_character() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude42"}') == {"a": "🙂"}


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"{}"),
        ("identity", b"{}"),
        ("gzip", gzip.compress(b"{}")),
        ("GZIP", gzip.compress(b"{") + gzip.compress(b"}")),
        ("deflate", zlib.compress(b"{}")),
    ],
    ids=["none", "identity", "gzip", "gzip of two members", "deflate"],  # packed data has the time in it
)
def test_known_encoding_is_inflated(encoding: str | None, packed: bytes) -> None:
    assert inflate(packed, encoding, max_bytes=1024) == b"{}"


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip", "x"])
def test_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(BadRequest) as caught:
        inflate(b"", encoding, max_bytes=1024)
    assert caught.value.code == "unsupported_encoding"


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (gzip.compress(b"a" * 200_000), "body_too_large"),
        (gzip.compress(b"a" * 600) * 2, "body_too_large"),  # summed over members
        (gzip.compress(b"a")[:-4], "malformed_body"),
        (b"not gzip", "malformed_body"),
        (gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1), "malformed_body"),
    ],
    ids=["bomb", "bomb of two members", "cut", "not gzip", "too many members"],
)
def test_bomb_and_broken_data_are_refused(packed: bytes, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        inflate(packed, "gzip", max_bytes=1000)
    assert caught.value.code == code


def test_exactly_the_bound_is_let_through() -> None:
    assert len(inflate(gzip.compress(b"a" * 1000), "gzip", max_bytes=1000)) == 1000
    assert len(inflate(gzip.compress(b"a") * MAX_GZIP_MEMBERS, "gzip", max_bytes=1000)) == MAX_GZIP_MEMBERS
