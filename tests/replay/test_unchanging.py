"""What was read or judged stays as it was: nothing in these rooms can be assigned to."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from types import ModuleType

import msgspec
import pytest

import mesh.replay
import mesh.schema


def kinds(room: ModuleType):
    for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        for kind in vars(importlib.import_module(found.name)).values():
            if isinstance(kind, type) and kind.__module__ == found.name:
                yield kind


DATACLASSES = [kind for room in (mesh.replay, mesh.schema) for kind in kinds(room) if dataclasses.is_dataclass(kind)]
VALUES = [kind for kind in kinds(mesh.schema) if issubclass(kind, msgspec.Struct)]


@pytest.mark.parametrize("kind", DATACLASSES, ids=lambda kind: kind.__qualname__)
def test_dataclass_cannot_be_assigned_to(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    one = object.__new__(kind)
    for name in [*names, "anything_else"]:
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            setattr(one, name, None)
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__qualname__)
def test_value_is_frozen(kind):
    assert kind.__struct_config__.frozen
