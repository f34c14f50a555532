"""What holds for every module of the room."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import mesh.identity

MODULES = [
    importlib.import_module(f"mesh.identity.{found.name}") for found in pkgutil.iter_modules(mesh.identity.__path__)
]
OWN: list[Any] = [
    value
    for module in MODULES
    for value in vars(module).values()
    if getattr(value, "__module__", "") == module.__name__
]
VALUES = [value for value in OWN if isinstance(value, type) and dataclasses.is_dataclass(value)]
CALLED = [
    *(value for value in OWN if inspect.isfunction(value)),
    *(inner for value in OWN if isinstance(value, type) for inner in vars(value).values() if inspect.isfunction(inner)),
]
CACHING = {"GgufModel"}  # keeps what it worked out beside its fields


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_values_do_not_change_and_hold_nothing_else(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert ("__slots__" in vars(kind)) == (kind.__name__ not in CACHING)


def test_parameters_may_be_given_by_name() -> None:
    kept = inspect.Parameter.POSITIONAL_ONLY
    assert [
        one for one in CALLED if any(each.kind is kept for each in inspect.signature(one).parameters.values())
    ] == []
