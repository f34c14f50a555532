"""The settings that a launch has in force, each with the one place that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.launch.levers import DERIVED, Lever, read_levers
from mesh.launch.ranks import entrypoint_of
from mesh.launch.recipe import Recipe
from mesh.launch.record import LaunchRecord

LAUNCHER = "the launcher"


@dataclass(frozen=True, slots=True)
class Setting:
    """`name` is a lever without its dashes, `model`, `image` or `env.NAME`. A switch's value is empty."""

    name: str
    value: str
    origin: str

    def words(self) -> str:
        return f"{self.name} = {self.value or 'on'} ({self.origin})"

    def to_map(self) -> dict[str, str]:
        return {"name": self.name, "value": self.value, "origin": self.origin}


def settings_of(record: LaunchRecord, recipe: Recipe) -> list[Setting]:
    """Of the head, as its record has it: what was started decides, `recipe` as it was launched says only where each
    value stood, which for one that was imported is what the importer wrote down."""
    head = record.fields["ranks"][0]
    levers, loose = read_levers(_after(list(head["argv"]), list(entrypoint_of(recipe))), recipe.engine, None)
    found = [] if not loose else [Setting("model", loose[0], recipe.origins.get("model", "recipe.toml: model"))]
    if "image" in record.fields:
        image = str(record.fields["image"])
        found.append(Setting("image", image, recipe.origins.get("image", "recipe.toml: docker_image")))
    found += [_lever(lever, recipe) for lever in levers]
    for name, value in head["environment"].items():
        origin = "recipe.toml: env" if name in recipe.env else LAUNCHER
        found.append(Setting(f"env.{name}", str(value), recipe.origins.get(f"env.{name}", origin)))
    return found


def _after(argv: list[str], entrypoint: list[str]) -> list[str]:
    """The engine's own words: what starts it may stand behind words of somebody else, as of Ray."""
    size = len(entrypoint)
    at = next((n for n in range(len(argv)) if argv[n : n + size] == entrypoint), 0)
    return argv[at + size :]


def _lever(lever: Lever, recipe: Recipe) -> Setting:
    name = lever.name.lstrip("-").replace("-", "_")
    field = DERIVED[recipe.engine].get(lever.name)
    if field is None:
        origin = "recipe.toml: args"
    else:
        origin = f"recipe.toml: {field}" if field in recipe.model_fields_set else LAUNCHER
    name = "model" if field == "model" else name
    return Setting(name, " ".join(lever.values), recipe.origins.get(name, origin))
