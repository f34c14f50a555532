"""Text from pieces: whole characters only, nothing from a stop string on, and a true count of what went out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.gateway.text import TextStream

# GW-07: pieces of tokens in hex, and the text they make
SPLIT = [
    (["486920f09f", "9982"], "Hi \N{SLIGHTLY SMILING FACE}"),
    (["e6", "9d", "b1"], "東"),
    (["f09f91a8e2", "808df09f91", "a9"], "\U0001f468\u200d\U0001f469"),
    (["e69d", "41"], "\ufffdA"),
    (["6f6b20f09f"], "ok \ufffd"),
]


def parts(stream: TextStream, pieces: list[bytes]) -> list[str]:
    """The text released by each piece, and by the end."""
    return [stream.push(piece).text for piece in pieces] + [stream.finish().text]


@pytest.mark.parametrize(("pieces", "text"), SPLIT)
def test_text_of_split_characters_is_exact(pieces: list[str], text: str) -> None:
    assert "".join(parts(TextStream(), [bytes.fromhex(piece) for piece in pieces])) == text


def test_text_never_holds_half_a_character() -> None:
    assert parts(TextStream(), [b"Hi \xf0\x9f", b"\x99\x82"]) == ["Hi ", "\N{SLIGHTLY SMILING FACE}", ""]


def test_invalid_bytes_show_once_and_stall_nothing() -> None:
    assert parts(TextStream(), [b"\xe6\x9d", b"A", b"B"]) == ["", "\ufffdA", "B", ""]


def test_output_cut_inside_a_character_says_so() -> None:
    stream = TextStream()
    assert parts(stream, [b"ok ", b"\xf0\x9f"]) == ["ok ", "", "\ufffd"]
    assert (stream.incomplete, stream.delivered) == (True, 1)


def test_whole_output_is_not_incomplete() -> None:
    stream = TextStream()
    parts(stream, ["東".encode()])
    assert (stream.incomplete, stream.delivered) == (False, 1)


def test_two_streams_share_nothing() -> None:
    one, two = TextStream(), TextStream()
    assert one.push(b"\xe6").text == ""
    assert two.push(b"\x9d").text == "\ufffd"
    assert one.push(b"\x9d\xb1").text == "東"


def test_stop_across_tokens_is_held_and_cut() -> None:
    stream = TextStream(["\nUser:"])
    assert parts(stream, [b"fine\n", b"Us", b"er: x", b"more"]) == ["fine", "", "", "", ""]
    assert (stream.stopped, stream.delivered) == (True, 0)


def test_text_that_only_looked_like_a_stop_is_released() -> None:
    stream = TextStream(["\nUser:"])
    assert parts(stream, [b"fine\n", b"Us", b"ual"]) == ["fine", "", "\nUsual", ""]
    assert stream.delivered == 3


def test_beginning_of_a_stop_at_the_end_is_released() -> None:
    stream = TextStream(["<end>"])
    assert parts(stream, [b"a<en"]) == ["a", "<en"]
    assert (stream.stopped, stream.delivered) == (False, 1)


def test_stop_inside_one_token_cuts_the_token() -> None:
    stream = TextStream(["b"])
    assert parts(stream, [b"x", b"abc"]) == ["x", "a", ""]
    assert stream.delivered == 1  # of the second, not all text is out


def test_stop_that_is_complete_first_wins_and_of_two_at_once_the_longer() -> None:
    assert "".join(parts(TextStream(["abcd", "bc"]), [b"abcd"])) == "a"
    assert "".join(parts(TextStream(["bc", "abc"]), [b"xabc"])) == "x"


def test_stop_with_repeating_beginnings_is_found() -> None:
    assert "".join(parts(TextStream(["aab"]), [b"a", b"a", b"a", b"a", b"b", b"c"])) == "aa"


def test_ids_without_bytes_are_not_delivered() -> None:
    stream = TextStream()
    parts(stream, [b"a", b"", b"b", b""])
    assert stream.delivered == 2


@given(
    text=st.text(alphabet="aab\n東🙂é", max_size=40),
    stops=st.lists(st.text(alphabet="ab\n東", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 120), max_size=20),
)
def test_text_does_not_depend_on_where_tokens_end(text: str, stops: list[str], cuts: list[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    stream = TextStream(stops)
    released = parts(stream, pieces)
    # said naively: the first prefix that ends with a stop, without the longest stop that it ends with
    expected = text
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            expected = text[: end - max(map(len, found))]
            break
    assert "".join(released) == expected
    assert "\ufffd" not in expected
    assert stream.delivered <= len(pieces)
    if stream.stopped is False:
        assert stream.delivered == len(pieces)


@given(
    st.lists(
        st.sampled_from([b"", b"a", b"bc", "é".encode(), "é".encode()[:1], "é".encode()[1:], b"\xff"]), max_size=9
    ),
    st.sampled_from([(), ("bc",)]),
)
def test_tokens_that_come_together_are_as_those_that_come_alone(pieces: list[bytes], stops: tuple[str, ...]) -> None:
    alone, together = TextStream(stops), TextStream(stops)
    texts = [alone.push(piece).text for piece in pieces]
    if not together.plain:
        assert stops
        return
    released = together.push_all(pieces)
    assert (released.text, released.delivered) == ("".join(texts), alone.delivered)
    assert (together.released, together.plain) == (alone.released, alone.plain)
    assert together.finish() == alone.finish()
    assert together.incomplete == alone.incomplete
