"""A plug-in as a lab would write it: a switch that is a file, and slices of a table for each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh.launch.plugins import Plugin


class Lab(Plugin):
    tables = ("home_assistant",)
    staging = ("sparse-rows",)
    switches = True

    def staging_commands(
        self, block: Mapping[str, Any], recipe: Mapping[str, Any], place: Mapping[str, Any]
    ) -> Sequence[tuple[str, str]]:
        return [
            ("rows", f"pack {recipe['model']} {place['rank']}/{place['ranks']} {block['format']} >{block['dst']}/rows")
        ]

    def entity_states(self, config: Mapping[str, Any], entities: Sequence[str]) -> Mapping[str, str]:
        folder = Path(config["home_assistant"]["folder"])
        return {one: (folder / one).read_text() if (folder / one).exists() else "unknown" for one in entities}

    def power_steps(self, config: Mapping[str, Any], cluster: Mapping[str, Any], on: bool) -> Sequence[str]:
        return [f"{node['entity']} {'on' if on else 'off'}" for node in cluster["nodes"] if "entity" in node]

    def power(
        self, config: Mapping[str, Any], cluster: Mapping[str, Any], on: bool, note: Callable[[str], None]
    ) -> None:
        for node in cluster["nodes"]:
            (Path(config["home_assistant"]["folder"]) / node["entity"]).write_text("on" if on else "off")
            note(f"{node['entity']} is switched")


def broken() -> Plugin:
    raise RuntimeError("no token")
