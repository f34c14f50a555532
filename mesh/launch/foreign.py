"""What every import of somebody else's recipe shares: reading YAML with nothing lost, and the account of its keys.

Each key of the source is converted, or it is listed with the reason why not. There is no third.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from mesh.errors import UsageError
from mesh.launch.finding import Finding, error, note, warning
from mesh.launch.recipe import Recipe
from mesh.launch.toml_file import validated

MAX_LEAVES = 20_000  # an alias can make a small file huge
_MARKER = re.compile(r"(<<<<<<<|=======|>>>>>>>)( |\Z)")

Path = tuple[str, ...]


class _Loader(yaml.SafeLoader):
    """Plain YAML, which also says which keys stand twice in one mapping: the parser keeps the last and says nothing."""

    twice: list[tuple[str, int]]

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen and key != "<<":
                self.twice.append((key, key_node.start_mark.line + 1))
            seen.add(key if isinstance(key, str) else None)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def read_yaml(data: bytes, source: str) -> tuple[list[Any], list[Finding]]:
    """The documents of a file, and what its reading found. Raises UsageError naming the line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(f"{source}: not valid utf-8 at byte {e.start}") from None
    markers = [number for number, line in enumerate(text.splitlines(), 1) if _MARKER.match(line)]
    if markers:
        raise UsageError(f"{source}: merge-conflict markers in lines {', '.join(map(str, markers))}")
    loader = _Loader(text)
    loader.twice = []
    try:
        documents = []
        while loader.check_data():  # type: ignore[no-untyped-call]
            documents.append(loader.get_data())
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise UsageError(f"{source}: not valid yaml: {where}{getattr(e, 'problem', None) or e}") from None
    except (RecursionError, ValueError) as e:
        raise UsageError(f"{source}: not valid yaml: {e}") from None
    finally:
        loader.dispose()
    twice = [error("key-twice", key, f"again in line {line}; the last one counts") for key, line in loader.twice]
    return documents, twice


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that holds no others, and where it is. An empty list or mapping is one itself."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for at, item in enumerate(value):
            yield from leaves(item, (*path, str(at)))
    else:
        yield path, value


def dotted(path: Sequence[str]) -> str:
    return ".".join(path)


@dataclass(slots=True)
class Draft:
    """A recipe in the making. `values` are ours; `done` are the source's leaves that are in it, each with where it
    went; `listed` the ones that are not, and what was found."""

    form: str
    source: Mapping[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    done: dict[Path, str] = field(default_factory=dict)
    listed: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        for count, _ in enumerate(leaves(self.source)):
            if count > MAX_LEAVES:
                raise UsageError(f"{self.form}: over {MAX_LEAVES} values")

    def take(self, *path: str, to: str) -> Any:
        """The value at `path`, None where there is none; all leaves beneath count as converted."""
        value = self.look(*path)
        self.mark(path, to)
        return value

    def look(self, *path: str) -> Any:
        value: Any = self.source
        for key in path:
            if isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, Mapping) and key in value:
                value = value[key]
            else:
                return None
        return value

    def mark(self, path: Sequence[str], to: str) -> None:
        for leaf in self._under(path):
            self.done[leaf] = to

    def drop(self, *path: str, why: str, level: str = "note", code: str = "not-converted") -> None:
        """List what is at `path`, if anything is."""
        under = [leaf for leaf in self._under(path) if leaf not in self.done]
        if under:
            make = {"note": note, "warning": warning, "error": error}[level]
            self.listed.append(make(code, dotted(path), why))
            for leaf in under:
                self.done[leaf] = "listed"

    def find(self, level: str, code: str, where: str, message: str) -> None:
        self.listed.append({"note": note, "warning": warning, "error": error}[level](code, where, message))

    def _under(self, path: Sequence[str]) -> list[Path]:
        want = tuple(path)
        return [leaf for leaf, _ in leaves(self.source) if leaf[: len(want)] == want]

    def finish(self) -> None:
        """List every leaf that is not accounted for."""
        for leaf, value in leaves(self.source):
            if leaf not in self.done:
                self.done[leaf] = "listed"
                self.listed.append(warning("not-converted", dotted(leaf), f"{short(value)}: no place for it"))

    def recipe(self) -> Recipe:
        """Raises UsageError where what was made is none: a fault of the source."""
        return validated(Recipe, self.values, f"{self.form} recipe")


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_text(value: Any) -> str:
    """A scalar as a shell or an environment has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return str(value)


def take_env(draft: Draft, *path: str) -> dict[str, str]:
    """The mapping at `path` as an environment. What has no value is listed."""
    given = draft.look(*path)
    env: dict[str, str] = {}
    if given is None or given == {}:
        draft.mark(path, "env")
        return env
    if not isinstance(given, Mapping):
        draft.drop(*path, why=f"{short(given)}: no mapping of names to values", level="error")
        return env
    for name, value in given.items():
        if value is None:
            draft.drop(*path, str(name), why="no value, so it is not set", level="warning", code="dead")
        elif isinstance(value, (dict, list)):
            draft.drop(*path, str(name), why=f"{short(value)}: no plain value", level="error")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            draft.drop(*path, str(name), why="no name of a variable", level="error")
        else:
            if isinstance(value, bool):
                draft.find(
                    "warning", "boolean", dotted((*path, str(name))), f"{value}: passed on as {as_text(value)!r}"
                )
            env[str(name)] = as_text(value)
            draft.mark((*path, str(name)), f"env.{name}")
    return env
