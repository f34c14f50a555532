"""What a blueprint is read into is not changed by anybody."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import mesh.blueprint


def test_values_of_blueprints_are_frozen() -> None:
    found = []
    for info in pkgutil.iter_modules(mesh.blueprint.__path__):
        module = importlib.import_module(f"mesh.blueprint.{info.name}")
        for name, value in vars(module).items():
            if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__:
                found.append((name, value.__dataclass_params__.frozen))
    assert len(found) > 30
    assert [name for name, frozen in found if not frozen] == []
