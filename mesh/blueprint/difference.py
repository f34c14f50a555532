"""What differs between two blueprints, in lines: what they state, not how it is encoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from mesh.blueprint.body import Body
from mesh.blueprint.circuit import Circuit

# Lists of parts that have a name of their own: compared by it, wherever they stand.
_NAMED = {
    "formats": "name", "weights": "name", "states": "name", "nodes": "name", "modules": "name",
    "kernels": "function",
}  # fmt: skip


def differences(one: Body, other: Body) -> Iterator[tuple[str, str, str]]:
    """Each as what it is about, what the first states and what the second does; `none` where one of them does not."""
    yield from _of("", one, other)


def _of(what: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if one == other:
        return
    if type(one) is not type(other) or not dataclasses.is_dataclass(one):
        yield what, _told(one), _told(other)
        return
    for field in dataclasses.fields(one):
        name = f"{what}.{field.name}" if what else field.name
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if mine == theirs:
            continue
        if isinstance(one, Circuit) and field.name == "edges":
            yield from _of_maps(name, _edges(one), _edges(other))
        elif field.name in _NAMED:
            key = _NAMED[field.name]
            spell = _spelled(one), _spelled(other)
            yield from _of_maps(name, *({getattr(part, key): make(part) for part in parts}
                                        for parts, make in zip((mine, theirs), spell, strict=True)))  # fmt: skip
        elif field.name == "plan":
            yield from _of_maps(name, *({f"{arm.mode} {arm.rows_from}-{arm.rows_to}": arm.digest for arm in arms}
                                        for arms in (mine, theirs)))  # fmt: skip
        elif field.name == "environment":
            yield from _of_maps(name, dict(mine), dict(theirs))
        else:
            yield from _of(name, mine, theirs)


def _spelled(owner: Any) -> Any:
    """Parts with the names of what they point at, so that an entry more does not change all behind it."""

    def of(part: Any) -> Any:
        values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        if isinstance(owner, Circuit):
            if "format" in values:
                values["format"] = owner.formats[values["format"]].name
            if "weights" in values:
                values["weights"] = tuple(owner.weights[number].name for number in values["weights"])
            if values.get("block") is not None and "kind" in values:
                values["block"] = owner.blocks[values["block"]]
            if values.get("state") is not None:
                values["state"] = owner.states[values["state"]].name
        return values

    return of


def _edges(circuit: Circuit) -> dict[str, str]:
    return {
        f"{circuit.nodes[edge.start].name} to {circuit.nodes[edge.end].name}":
            f"{edge.width} in {circuit.formats[edge.format].name}"
        for edge in circuit.edges
    }  # fmt: skip


def _of_maps(what: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key in [*one, *(key for key in other if key not in one)]:
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            for name in mine:
                if mine[name] != theirs[name]:
                    yield f"{what}[{key}].{name}", _told(mine[name]), _told(theirs[name])
        elif mine != theirs:
            yield f"{what}[{key}]", _told(mine), _told(theirs)


def _told(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items() if one not in (None, ()))
    if isinstance(value, tuple):
        return " ".join(map(_told, value)) or "none"
    return str(value)
