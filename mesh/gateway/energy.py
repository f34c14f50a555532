"""An answer's energy, in the field names that clients of hosted services read, with our basis and receipt beside.

The receipt is what counts, in whole microjoules; these are floats made from it for reading. What the receipt does not
say is not there: a client that finds no `energy_joules` has been told that there is no figure, which 0 would not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.schema.energy import BASES, Energy
from mesh.schema.view import json_bytes
from mesh.steward.serves import SealedServe

_UJ_PER_J = 1_000_000
_UJ_PER_KWH = 3_600_000_000_000
_NS_PER_S = 1_000_000_000


def energy_object(served: Sequence[SealedServe]) -> dict[str, Any]:
    """The `energy` of an answer with these serves, one for each choice.

    Of several: the sum, where each has a figure, and the weakest basis; no duration and no power, since choices run
    beside or after one another, and no ratio. `mesh` has each choice's own.
    """
    energies = [one.receipt.energy for one in served]
    if len(served) == 1:
        return {**energy_fields(energies[0]), "receipt_id": served[0].receipt_id.text}
    weakest = max(energies, key=lambda energy: BASES.index(energy.basis))
    figures = [energy.uj for energy in energies if energy.uj is not None]
    told: dict[str, Any] = {"basis": weakest.basis}
    if len(figures) == len(energies):
        told = _figures(sum(figures)) | told
        if len(rules := {energy.rule for energy in energies} - {None}) == 1:
            told["attribution_method"] = rules.pop()
    else:
        told["reason"] = weakest.reason
    return {**told, "receipt_ids": [one.receipt_id.text for one in served]}


def energy_comment(served: Sequence[SealedServe]) -> bytes:
    """The same as a comment in a stream, which a reader of events passes over."""
    return b": energy " + json_bytes(energy_object(served)) + b"\n\n"


def energy_fields(energy: Energy) -> dict[str, Any]:
    """Of one serve: joules, kWh, watts and seconds, and the rule and its share where there was company."""
    told: dict[str, Any] = {}
    if energy.uj is not None:
        told |= _figures(energy.uj)
        if energy.span_ns:
            told["avg_power_watts"] = energy.uj * (_NS_PER_S // _UJ_PER_J) / energy.span_ns
    if energy.span_ns is not None:
        told["duration_seconds"] = energy.span_ns / _NS_PER_S
    if energy.covered_ns is not None:
        told["covered_seconds"] = energy.covered_ns / _NS_PER_S
    if energy.rule is not None and energy.uj is not None:
        told["attribution_method"] = energy.rule
        if energy.window_uj:
            told["attribution_ratio"] = energy.uj / energy.window_uj
    told["basis"] = energy.basis
    if energy.reason is not None:
        told["reason"] = energy.reason
    return told


def _figures(uj: int) -> dict[str, float]:
    return {"energy_joules": uj / _UJ_PER_J, "energy_kwh": uj / _UJ_PER_KWH}
