"""One recipe of several views of a server: each value has one origin, and where the views clash somebody has chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesh.errors import UsageError
from mesh.launch.finding import Finding, error, note, warning
from mesh.launch.recipe import RecipeFile
from mesh.launch.validate import Rules, validate
from mesh.launch.views import COMPUTED, View, differences

EVERYTHING = "*"
_WORDS = {
    "model": "model",
    "image": "docker_image",
    "host": "host",
    "served_model_name": "served_model_name",
    "alias": "served_model_name",
    "revision": "model_revision",
    "distributed_executor_backend": "distributed_backend",
}
_NUMBERS = {
    "tensor_parallel_size": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "nnodes": "required_nodes",
}
_LAUNCHERS = ("port", "node_rank", "master_addr", "master_port", "headless", "dist_init_addr", "nccl_init_addr")


@dataclass(slots=True)
class Merged:
    """`values` are settings and `env.NAME`, `origins` where each is from. `findings` hold an error for each clash that
    nobody decided; there is no recipe then."""

    engine: str
    values: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def merged(views: Sequence[View], take: Mapping[str, str]) -> Merged:
    """`take` maps a setting, or `*`, to the view whose word counts: its not setting it is a word too. Raises UsageError
    for a choice of what is not there, or views of two engines."""
    engines = sorted({view.engine for view in views if view.engine is not None})
    if len(engines) != 1:
        raise UsageError(f"views of {', '.join(engines) or 'no engine'}: one recipe is of one engine")
    sources = [view.source for view in views]
    made = Merged(engines[0])
    clashes = differences(views)
    for name, source in take.items():
        if source not in sources:
            raise UsageError(f"--take {name}={source}: no such view; there are {', '.join(sources)}")
        if name != EVERYTHING and name not in clashes:
            raise UsageError(f"--take {name}={source}: the views do not differ in it")
    names = sorted(
        {name for view in views for name in view.settings} | {f"env.{n}" for view in views for n in view.environment}
    )
    for name in names:
        said = {view.source: value for view in views if (value := _value(view, name)) is not None}
        chosen = take.get(name, take.get(EVERYTHING)) if name in clashes else None
        if name in clashes and chosen is None:
            shown = ", ".join(f"{source} says {value or 'on'!r}" for source, value in said.items())
            silent = [source for source in sources if source not in said]
            shown += f"; {', '.join(silent)} nothing" if silent else ""
            made.findings.append(error("clash", name, f"{shown}: --take {name}=FILE decides"))
            continue
        source = chosen or next(iter(said))
        if source not in said:
            made.findings.append(note("left-out", name, f"{source} does not set it, and was chosen"))
            continue
        if said[source] == COMPUTED:
            made.findings.append(error("computed", name, f"{source} computes it: no value that a recipe could hold"))
            continue
        made.values[name] = said[source]
        view = next(view for view in views if view.source == source)
        made.origins[name] = view.origins.get(name, source)
    return made


def _value(view: View, name: str) -> str | None:
    if name.startswith("env."):
        return view.environment.get(name.removeprefix("env."))
    return view.settings.get(name)


def merged_recipe(made: Merged, name: str, rules: Rules = Rules()) -> tuple[str, RecipeFile]:  # noqa: B008 - frozen
    """The recipe's text and what it says; what a launcher makes itself is listed among the findings. Raises UsageError
    where there is a clash, or what is left is no recipe."""
    try:
        import tomlkit
    except ImportError:
        raise UsageError("recipes are imported with the extra: pip install 'servemesh[launch]'") from None
    open_ones = [one.where for one in made.findings if one.level == "error"]
    if open_ones:
        raise UsageError(f"no recipe while {', '.join(open_ones)} are open")
    plain: dict[str, Any] = {"engine": made.engine}
    args: list[str] = []
    env = {}
    for key, value in made.values.items():
        if key.startswith("env."):
            env[key.removeprefix("env.")] = value
        elif key in _WORDS:
            plain[_WORDS[key]] = value
        elif key in _NUMBERS and value.isdigit():
            plain[_NUMBERS[key]] = int(value)
        elif key in _LAUNCHERS:
            made.findings.append(note("changed", key, f"{value or 'on'}: the launcher makes it"))
        else:
            args += ["--" + key.replace("_", "-"), *([value] if value else [])]
            if " " in value and value[:1] not in "{[":
                made.findings.append(warning("words", key, f"{value!r}: kept as one word"))
    tables = ({"env": env} if env else {}) | {"origins": {key: made.origins[key] for key in made.values}}
    text = tomlkit.dumps(plain | {"args": args} | tables)
    file = RecipeFile.of(text.encode("utf-8"), Path(name) / "recipe.toml")
    made.findings += validate(file, rules)
    return text, file
