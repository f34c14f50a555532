"""What `mesh serve` would run, and what would keep it from running, told without starting anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.cli.granted import Granted
from mesh.cli.launched import as_launched
from mesh.cli.specs import EngineSpec, GgufSpec, ReferenceSpec, VllmSpec
from mesh.cli.starting import check_files, check_words
from mesh.errors import MeshError, UsageError

if TYPE_CHECKING:
    from mesh.gateway.backends import Route


NO_GRANTS = Granted()


@dataclass(slots=True)
class Checked:
    """One backend: `name` is None where only its server knows it. `faults` are what its start would fail with."""

    kind: str
    name: str | None
    source: str
    aliases: list[str]
    faults: list[str] = field(default_factory=list)

    def to_map(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "name": self.name, "source": self.source, "aliases": self.aliases, "faults": self.faults
        }  # fmt: skip

    def words(self) -> str:
        name = self.name if self.name is not None else "(as its server calls it)"
        also = f", also {', '.join(self.aliases)}" if self.aliases else ""
        return f"{self.kind}: {name}{also}, {self.source}"


def checked(
    specs: Sequence[EngineSpec], routes: Sequence[Route], launches: Sequence[Path | None] = ()
) -> list[Checked]:
    """Each backend with what is wrong with it: files that are not there or not sound, names that say two things, and a
    launch record that says something else."""
    aliases = [list(route.aliases) for route in routes] or [[] for _ in specs]
    found = [_checked(spec, also) for spec, also in zip(specs, aliases, strict=True)]
    for spec, one in zip(specs, found, strict=True):
        one.faults[:0] = _of_words(spec)
    for spec, one, record in zip(specs, found, launches, strict=False):
        one.faults += [] if record is None else _of_record(spec, record)
    names = [one.name for one in found if one.name is not None]
    for one in found:
        if one.name is not None and names.count(one.name) > 1:
            one.faults.append(f"{one.name!r} is the name of another backend too")
        one.faults += [f"alias {alias!r} is the name of a backend" for alias in one.aliases if alias in names]
    return found


def _of_record(spec: EngineSpec, path: Path) -> list[str]:
    try:
        as_launched(spec, path)
    except (MeshError, OSError) as e:
        return [str(e)]
    return []


def _checked(spec: EngineSpec, aliases: list[str]) -> Checked:
    match spec:
        case ReferenceSpec():
            return Checked("reference", spec.name or "reference", "the reference engine", aliases)
        case GgufSpec():
            one = Checked("gguf", spec.name or spec.path.stem, str(spec.path), aliases)
            one.faults += [*_of_model(spec.path), *_of_files(spec.chat_template)] or _of_all(spec)
            return one
        case VllmSpec():
            return _checked_vllm(spec, aliases)


def _checked_vllm(spec: VllmSpec, aliases: list[str]) -> Checked:
    if spec.url is not None:
        one = Checked("vllm", spec.name, spec.url, aliases)
    else:
        assert spec.weights is not None
        one = Checked("vllm-managed", spec.name or spec.weights.resolve().name, str(spec.weights), aliases)
        if shutil.which(spec.executable) is None:
            one.faults.append(f"{spec.executable}: no such program")
    one.faults += [*_of_folders(spec.weights, spec.tokenizer), *_of_files(spec.chat_template, spec.key_file)]
    return one


def _of_words(spec: EngineSpec) -> Iterator[str]:
    try:
        check_words(spec)
    except UsageError as e:
        yield str(e)


def _of_model(path: Path) -> Iterator[str]:
    from mesh.identity.model import read_model

    try:
        read_model(path)
    except (MeshError, OSError) as e:
        yield _told(path, e)


def _of_folders(*paths: Path | None) -> Iterator[str]:
    for path in paths:
        if path is not None and not path.is_dir():
            yield f"{path}: no such folder"


def _of_files(*paths: Path | None) -> Iterator[str]:
    for path in paths:
        if path is not None:
            try:
                with path.open("rb"):
                    pass
            except OSError as e:
                yield _told(path, e)


def _of_all(spec: GgufSpec) -> list[str]:
    """What only shows in files that are sound each by itself."""
    try:
        check_files(spec)
    except (MeshError, OSError) as e:
        return [_told(spec.path, e)]
    return []


def of_address(host: str, keys: Sequence[str], granted: Granted = NO_GRANTS) -> list[str]:
    from mesh.gateway.auth import Gatekeeper, StaticKeys

    try:
        Gatekeeper([*([StaticKeys(keys)] if keys else []), *granted.authenticators()]).check_bind(host)
    except UsageError as e:
        return [str(e)]
    except OSError as e:
        return [_told(Path(e.filename or host), e)]
    return []


def _told(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{path}: {(error.strerror or type(error).__name__).lower()}"
    return str(error)
