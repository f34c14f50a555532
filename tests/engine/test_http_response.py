"""HTTP answers cut anywhere, malformed anywhere."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.http_response import MAX_HEAD_BYTES, AnswerReader, MalformedAnswer

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;name=value\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n"
)
HEAD = CHUNKED[: CHUNKED.index(b"2\r\nhe")]
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + COUNTED
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class Kept(AnswerReader):
    body = b""

    def take(self, data: bytes) -> None:
        assert self.status
        assert data
        self.body += data


def read(*parts: bytes) -> tuple[AnswerReader, bytes]:
    reader = Kept()
    for part in parts:
        reader.feed(part)
    return reader, reader.body


@given(st.sampled_from([COUNTED, CHUNKED, EARLY]), st.lists(st.integers(0, 130), max_size=12))
def test_bytes_cut_anywhere_give_the_same_answer(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    reader, body = read(*(data[a:b] for a, b in itertools.pairwise(places)))
    assert (reader.status, body, reader.whole, reader.reusable) == (200, b"hello", True, True)


@given(st.sampled_from([COUNTED, CHUNKED, EARLY]), st.data())
def test_an_answer_that_is_cut_short_is_not_whole(data: bytes, drawn: st.DataObject) -> None:
    reader, _ = read(data[: drawn.draw(st.integers(0, len(data) - 1))])
    assert not reader.end()


@given(st.binary(max_size=200), st.sampled_from([b"", COUNTED[:40], HEAD, CHUNKED[:60]]))
def test_any_bytes_are_an_answer_or_malformed(data: bytes, begun: bytes) -> None:
    with contextlib.suppress(MalformedAnswer):
        read(begun + data)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    reader, body = read(ENDLESS)
    assert not reader.whole
    assert reader.end()
    assert (body, reader.reusable) == (b"hello", False)


def test_an_answer_without_a_body_is_whole() -> None:
    for data in (EMPTY, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
        reader, body = read(data)
        assert (body, reader.whole, reader.reusable) == (b"", True, True)


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True),
        (b"HTTP/1.1 200", True),
    ],
)
def test_a_connection_is_kept_where_both_sides_keep_it(head: bytes, reusable: bool) -> None:
    assert read(head + b"\r\nContent-Length: 0\r\n\r\n")[0].reusable is reusable


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "no http/1.1 answer"),
        (b"SSH-2.0-x\r\n\r\n", "no http/1.1 answer"),
        (b"HTTP/1.1 099 x\r\n\r\n", "no http/1.1 answer"),
        (b"HTTP/1.1 101 x\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "a malformed header"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", "a malformed header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length that is no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "two headers content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer-encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer-encoding"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "encoded body"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6 + 1), "a head of over"),
        (COUNTED + b"x", "more than one answer"),
        (HEAD + b"zz\r\n", "a chunk without a size"),
        (HEAD + b"1" * 5000, "a chunk without a size"),
        (HEAD + b"2\r\nhello\r\n", "longer than it says"),
        (HEAD + b"0\r\n" + b"t" * 5000, "a trailer without an end"),
    ],
)
def test_what_is_malformed_is_named(data: bytes, words: str) -> None:
    with pytest.raises(MalformedAnswer, match=words):
        read(data)


def test_a_fault_of_whoever_takes_it_goes_through() -> None:
    class Full(AnswerReader):
        def take(self, data: bytes) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):
        Full().feed(COUNTED)
