"""Records: what a frozen dataclass would be."""

from __future__ import annotations

import pytest

from mesh.schema.record import Record


class Pair(Record):
    left: int
    right: tuple[int, ...] = ()


def test_record_is_equal_by_its_fields_and_stays_as_it_is() -> None:
    pair = Pair(1, (2,))
    assert pair == Pair(left=1, right=(2,))
    assert hash(pair) == hash(Pair(1, (2,)))
    assert pair != Pair(1)
    with pytest.raises(AttributeError):
        pair.left = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        pair.other = 2  # type: ignore[attr-defined]


def test_other_fields_make_another_record() -> None:
    pair = Pair(1)
    assert pair.but(right=(3,)) == Pair(1, (3,))
    assert pair == Pair(1)
    with pytest.raises(TypeError):
        pair.but(middle=1)
