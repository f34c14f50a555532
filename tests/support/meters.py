"""A meter whose figures are known."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mesh.meter.protocol import Domain, Reading


class SteadyMeter:
    """A lamp: it draws the same all the time, `uj_per_us` microjoules in a microsecond, for the backend `recipe_id`."""

    interval_ns = 20_000_000

    def __init__(self, recipe_id: str, uj_per_us: int) -> None:
        self._domain = Domain(f"lamp:{recipe_id}", "lamp", 1, frozenset({recipe_id}), modelled=True)
        self._uj_per_us = uj_per_us
        self._began_ns = time.monotonic_ns()

    def domains(self) -> Sequence[Domain]:
        return [self._domain]

    def read(self) -> Sequence[Reading]:
        now_ns = time.monotonic_ns()
        return [Reading(self._domain.name, now_ns, (now_ns - self._began_ns) // 1000 * self._uj_per_us)]

    def close(self) -> None:
        """Nothing is held."""
