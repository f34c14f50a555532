"""The CDDL and the values have the same fields, optional in both or in neither."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mesh.schema.checkpoint import Checkpoint, DomainTotals
from mesh.schema.disclosure import Disclosure
from mesh.schema.energy import Energy, EnergySource
from mesh.schema.outcome import ServeOutcome
from mesh.schema.receipt import EngineBlock, Receipt
from mesh.schema.request import Sampling, ServeRequest
from mesh.schema.value import Value

CDDL = (Path(__file__).parents[2] / "vectors" / "mesh.cddl").read_text()

RULES: dict[str, type[Value]] = {
    "sampling": Sampling,
    "serve-request": ServeRequest,
    "serve-outcome": ServeOutcome,
    "energy-source": EnergySource,
    "energy": Energy,
    "engine-block": EngineBlock,
    "receipt": Receipt,
    "domain-totals": DomainTotals,
    "checkpoint": Checkpoint,
    "disclosure": Disclosure,
}


@pytest.mark.parametrize("rule", RULES)
def test_cddl_lists_exactly_the_fields_of_the_value(rule: str) -> None:
    found = re.search(rf"^{rule} = \{{\n(.*?)^\}}", CDDL, re.MULTILINE | re.DOTALL)
    assert found is not None
    listed = {m[2]: m[1] is not None for m in re.finditer(r"^  (\? )?([a-z_]+):", found[1], re.MULTILINE)}
    fields = {name: not field.is_required() for name, field in RULES[rule].model_fields.items()}
    assert listed == fields
