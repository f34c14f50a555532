"""Somebody else's recipe as one of ours, with the list of what is unpinned, contradictory or dead in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from mesh.errors import UsageError
from mesh.launch import foreign_sparks, foreign_vllm
from mesh.launch.finding import Finding
from mesh.launch.foreign import Draft, read_yaml
from mesh.launch.foreign_vllm import Choice
from mesh.launch.recipe import RecipeFile
from mesh.launch.toml_file import read_bounded
from mesh.launch.validate import Rules, comment_findings, validate
from mesh.launch.views import View, recipe_view

FORMS = ("eugr", "sparkrun", "vllm-recipes")


@dataclass(frozen=True, slots=True)
class Imported:
    """`text` is the recipe's TOML. `done` maps each leaf of the source to where it went, "listed" where it is among
    `findings`."""

    form: str
    text: str
    file: RecipeFile
    done: Mapping[tuple[str, ...], str]
    findings: tuple[Finding, ...]
    view: View


def form_of(document: Any) -> str | None:
    """Which form a YAML document has; None for one that is not claimed."""
    if not isinstance(document, dict):
        return None
    if "command" in document and "container" in document and "model" in document:
        return "sparkrun" if str(document.get("recipe_version")) == "2" or "runtime" in document else "eugr"
    if isinstance(document.get("model"), dict) and "model_id" in document["model"]:
        return "vllm-recipes"
    return None


def import_recipe(
    data: bytes, source: str, *, choice: Choice = Choice(), engine_version: str | None = None,  # noqa: B008 - frozen
    rules: Rules = Rules(),  # noqa: B008
) -> Imported:  # fmt: skip
    """Raises UsageError for a file of a form that is not known, or one that no recipe can be made of."""
    documents, found = read_yaml(data, source)
    if len(documents) != 1 or (form := form_of(documents[0])) is None:
        raise UsageError(f"{source}: of no form that is known: {', '.join(FORMS)}")
    try:
        draft = foreign_vllm.convert(documents[0], choice) if form == "vllm-recipes" else foreign_sparks.convert(
            documents[0], form
        )  # fmt: skip
        if engine_version is not None:
            draft.values["engine_version"] = engine_version
        text = _text(draft, source, sha256(data).hexdigest())
        file = RecipeFile.of(text.encode("utf-8"), Path(Path(source).stem) / "recipe.toml")
    except UsageError as e:
        raise UsageError(f"{source}: {e}") from None
    drift = comment_findings(data.decode("utf-8"), file.recipe.docker_image)
    return Imported(
        form,
        text,
        file,
        dict(draft.done),
        (
            *found,
            *draft.listed,
            *drift,
            *validate(file, rules),
        ),
        recipe_view(draft, Path(source).name),
    )


def import_file(path: Path, **options: Any) -> Imported:
    """`import_recipe` for a file. Raises OSError where it cannot be read."""
    return import_recipe(read_bounded(path), str(path), **options)


def _text(draft: Draft, source: str, digest: str) -> str:
    try:
        import tomlkit
    except ImportError:
        raise UsageError("recipes are imported with the extra: pip install 'servemesh[launch]'") from None
    plain = {
        key: value for key, value in draft.values.items() if not isinstance(value, dict) and value not in ([], False)
    }
    tables = {key: value for key, value in draft.values.items() if isinstance(value, dict)}
    head = f"# Imported from {Path(source).name} ({draft.form}), sha256 {digest}.\n"
    return head + tomlkit.dumps(plain | tables)
