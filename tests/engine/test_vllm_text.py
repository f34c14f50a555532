"""The bytes of ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.engine.protocol import pieces_of
from mesh.engine.vllm_text import Pieces
from mesh.errors import BadRequest

KNOWN = (b"a", b"", b"\xc3", b"\xa9", b" word")


@given(st.lists(st.integers(-2, len(KNOWN) + 1), max_size=6))
def test_several_at_once_are_what_each_is(tokens: list[int]) -> None:
    piece = Pieces(KNOWN)
    told: list[list[bytes] | str] = []
    for way in (lambda: [piece(token) for token in tokens], lambda: pieces_of(piece, tokens)):
        try:
            told.append(way())
        except BadRequest as e:
            told.append(str(e))
    assert told[0] == told[1]
    assert (told[0] == [KNOWN[token] for token in tokens if 0 <= token < len(KNOWN)]) is isinstance(told[0], list)


@pytest.mark.parametrize("token", [-1, len(KNOWN), 2**32 - 1])
def test_an_id_that_there_is_not_is_told(token: int) -> None:
    with pytest.raises(BadRequest, match=rf"token {token}: the vocabulary has ids 0\.\.4"):
        Pieces(KNOWN)(token)
