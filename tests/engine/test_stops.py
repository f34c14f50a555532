from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.stops import StopMatcher


def completed_at(stops: list[str], pieces: list[bytes]) -> int | None:
    matcher = StopMatcher(stops)
    return next((i for i, piece in enumerate(pieces) if matcher.push(piece)), None)


def test_a_stop_string_is_found_across_tokens() -> None:
    assert completed_at(["END"], [b"x E", b"N", b"Dxx", b"END"]) == 2


def test_a_stop_string_is_found_inside_one_token() -> None:
    assert completed_at(["END"], [b"an ENDing"]) == 0


def test_a_stop_string_is_found_across_tokens_that_split_a_character() -> None:
    raw = "日本".encode()
    assert completed_at(["日本"], [raw[:2], raw[2:4], raw[4:]]) == 2


def test_tokens_without_bytes_neither_stop_nor_interrupt() -> None:
    assert completed_at(["ab"], [b"a", b"", b"b"]) == 2


def test_a_stop_string_of_one_byte_needs_no_memory_of_before() -> None:
    assert completed_at(["\n"], [b"a", b"b\nc"]) == 1


def test_a_match_stays_one() -> None:
    matcher = StopMatcher(["a"])
    assert [matcher.push(piece) for piece in (b"", b"a", b"b")] == [False, True, True]


def test_without_stop_strings_nothing_stops() -> None:
    assert completed_at([], [b"a", b"b"]) is None


# few letters, so that overlaps and near misses are common
@given(
    st.lists(st.text("ab日", min_size=1, max_size=4), max_size=3),
    st.text("ab日", max_size=40),
    st.lists(st.integers(0, 120), max_size=40),
)
def test_a_match_comes_with_the_first_token_that_completes_one(stops: list[str], text: str, cuts: list[int]) -> None:
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut <= len(raw))})
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)]
    expected = next(
        (i for i in range(len(pieces)) if any(stop.encode() in b"".join(pieces[: i + 1]) for stop in stops)), None
    )
    assert completed_at(stops, pieces) == expected
