"""What an operator is told of engines that run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mesh.cli.assembly import engine_notes
from tests.gateway.serving import Scripted
from tests.identity.test_shard_route import ROUTE


def engine(**attributes: Any) -> Scripted:
    made = Scripted([b"a"], recipe_id="m")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({}, []),
        ({"self_check": SimpleNamespace(reason="all agreed")}, ["determinism of m: all agreed"]),
        ({"settings": {"pipeline_parallel": 1}}, []),
        ({"settings": {"pipeline_parallel": 2}, "shard_route": ROUTE}, []),
    ],
)
def test_engine_that_is_looked_at_has_no_more_to_say(attributes, said):
    assert engine_notes([engine(**attributes)]) == said


def test_server_that_divides_layers_unseen_is_told_of():
    (line,) = engine_notes([engine(settings={"pipeline_parallel": 2})])
    assert line.startswith("layers of m: its server divides them 2 ways, and nobody looked")
    assert "--route" in line
