"""Values of a size that is exact to the byte, for the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.material import Map, checkpoint, domain_totals, energy, receipt, source
from conformance.writer import item

PAYLOAD_BYTES = 32_768
ENVELOPE_BYTES = 65_536
PROTECTED_BYTES = 2_048

_NAMES, _CHARACTERS, _NUMBERED = 64, 256, 2


def energy_of(size: int) -> Map:
    return _filled(lambda names: energy(uj=0, sources=[source(domain=name, uj=0) for name in names]), size)


def receipt_of(size: int) -> Map:
    return _filled(
        lambda names: receipt(energy=energy(uj=0, sources=[source(domain=name, uj=0) for name in names])), size
    )


def checkpoint_of(size: int) -> Map:
    return _filled(lambda names: checkpoint(domains=[domain_totals(domain=name) for name in names]), size)


def _filled(make: Callable[[Sequence[str]], Map], size: int) -> Map:
    value = make(_names(size - len(item(make(_names(0))))))
    assert len(item(value)) == size
    return value


def _names(more: int) -> list[str]:
    """64 names of 256 characters, ascending, that together take `more` bytes more than they have characters. None
    needs another head for it."""
    out = []
    for number in range(_NAMES):
        double = min(more, _CHARACTERS - _NUMBERED)
        more -= double
        out.append(f"{number:02d}" + "é" * double + "m" * (_CHARACTERS - _NUMBERED - double))
    assert more == 0
    return out
