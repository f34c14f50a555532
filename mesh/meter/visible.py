"""Which cards a process sees that inherits CUDA_VISIBLE_DEVICES, in the numbering of the management library.

CUDA's own rule: entries are numbers, or UUIDs that may be shortened; an entry that names no card ends the list, and
`-1` is such an entry. Its numbers count from the fastest card unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and the
management library's count along the bus: the two are one only where that is said, or where all cards are of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mesh.errors import MeterError


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the management library knows it: `index` along the bus, and what no other card is called."""

    index: int
    uuid: str
    name: str


def visible_cards(cards: Sequence[Card], visible: str | None, order: str | None) -> list[Card]:
    """The cards that remain. `visible` and `order` are the two variables, None where they are not set. Raises
    MeterError where numbers are given that do not say which card is meant."""
    if visible is None:
        return list(cards)
    found: list[Card] = []
    for entry in visible.split(","):
        card = _named(cards, entry.strip(), order)
        if card is None:
            break
        if card not in found:
            found.append(card)
    return found


def _named(cards: Sequence[Card], entry: str, order: str | None) -> Card | None:
    if entry.isascii() and entry.isdigit():
        if order != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
            raise MeterError(
                f"CUDA_VISIBLE_DEVICES: {entry} may be any of several kinds of cards; name cards by UUID, "
                "or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        return next((card for card in cards if card.index == int(entry)), None)
    named = [card for card in cards if entry.startswith("GPU-") and card.uuid.startswith(entry)]
    return named[0] if len(named) == 1 else None


def card_of(cards: Sequence[Card], selector: int | str) -> Card | None:
    """The card that an operator means by a number along the bus, a UUID or the beginning of one; None where there is
    no such card, or more than one."""
    if isinstance(selector, int):
        return next((card for card in cards if card.index == selector), None)
    named = [card for card in cards if card.uuid.startswith(selector)]
    return named[0] if len(named) == 1 else None
