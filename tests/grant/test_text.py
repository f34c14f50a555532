"""A grant as one word, and the list of those that were revoked."""

from __future__ import annotations

import re

import pytest

from mesh.errors import SchemaError, UsageError
from mesh.grant.revocation import parse_revoked
from mesh.grant.text import MAX_TEXT_CHARS, grant_from_text, grant_text
from mesh.schema.limits import MAX_GRANT_BYTES, MAX_REVOCATION_FILE_BYTES
from tests.grant.chains import grant


def test_text_and_bytes_are_each_others():
    for size in (0, 1, 2, 3, 100, MAX_GRANT_BYTES):
        data = bytes(range(256)) * 16
        text = grant_text(data[:size])
        assert grant_from_text(text) == data[:size]
        assert len(text) <= MAX_TEXT_CHARS


def test_text_is_a_word_that_any_header_carries():
    assert re.fullmatch(r"mg1_[A-Za-z0-9_-]+", grant_text(grant({}, {})))


@pytest.mark.parametrize(
    "text",
    [
        "", "mg1", "mg2_AAAA", "MG1_AAAA", " mg1_AAAA", "mg1_AAAA ", "mg1_AAAA\n", "mg1_AA==", "mg1_AA=", "mg1_A",
        "mg1_AB", "mg1_AAB", "mg1_+A", "mg1_/A", "mg1_A A", "mg1_ÄA", "mg1_\ud800A", "mg1_" + "A" * 5464,
    ],
)  # fmt: skip
def test_other_text_is_refused_and_not_repeated(text):
    with pytest.raises(SchemaError) as caught:
        grant_from_text(text)
    assert len(text) < 8 or text not in str(caught.value)


def test_revocation_lists_are_read():
    a, b = "b3:" + "0a" * 32, "b3:" + "0b" * 32
    assert parse_revoked(b"") == frozenset()
    text = f"# lost\n{a} # by mail\r\n\n  {b}\n{a}"
    assert parse_revoked(text.encode()) == {bytes.fromhex("0a" * 32), bytes.fromhex("0b" * 32)}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"b3:0a\n", "line 1"), (b"\nB3:" + b"0a" * 32, "line 2"), (b"ed25519:" + b"0a" * 32, "line 1"),
        (b"b3:" + b"0a" * 32 + b" b3:" + b"0b" * 32, "line 1"), (b"\xff", "not a text file"),
        (b"#" * (MAX_REVOCATION_FILE_BYTES + 1), "over"),
    ],
)  # fmt: skip
def test_other_revocation_lists_are_refused(data, why):
    with pytest.raises(UsageError, match=why):
        parse_revoked(data)
