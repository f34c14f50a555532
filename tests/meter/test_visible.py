"""Which cards an engine uses. EN-07."""

from __future__ import annotations

import pytest

from mesh.errors import MeterError
from mesh.meter.visible import Card, card_of, visible_cards

ALIKE = [Card(0, "GPU-aa11", "H100"), Card(1, "GPU-bb22", "H100"), Card(2, "GPU-cc33", "H100")]
MIXED = [Card(0, "GPU-aa11", "T4"), Card(1, "GPU-bb22", "A10"), Card(2, "GPU-cc33", "H100")]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2", [2]),
        ("GPU-cc33", [2]),
        ("GPU-cc", [2]),
        ("1,2", [1, 2]),
        ("2, 1", [2, 1]),
        ("", []),
        ("-1", []),
        ("2,junk,1", [2]),
        ("2,-1,1", [2]),
        ("7,1", []),
        ("1,1", [1]),
        ("GPU-", []),  # which one?
        ("cc33", []),
        ("MIG-cc33", []),
        ("\u0662", []),
    ],
)
def test_visible_cards_follow_the_runtimes_rule(visible: str | None, indices: list[int]) -> None:
    for cards, order in ((ALIKE, None), (ALIKE, "FASTEST_FIRST"), (MIXED, "PCI_BUS_ID")):
        assert [card.index for card in visible_cards(cards, visible, order)] == indices


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_number_that_may_be_another_card_is_refused(order: str | None) -> None:
    with pytest.raises(MeterError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_cards(MIXED, "2", order)
    assert [card.index for card in visible_cards(MIXED, "GPU-cc", order)] == [2]


@pytest.mark.parametrize(
    ("selector", "index"), [(2, 2), (0, 0), (3, None), (-1, None), ("GPU-bb", 1), ("GPU-", None), ("GPU-x", None)]
)
def test_card_is_named_by_number_or_uuid(selector: int | str, index: int | None) -> None:
    card = card_of(MIXED, selector)
    assert (None if card is None else card.index) == index
