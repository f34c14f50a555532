"""What a bench leaves under one stem: `STEM.md` its report, `STEM.json` its data, `STEM.log` what it said meanwhile,
`STEM.recipe.toml` the recipe as it was launched, and last `STEM.manifest.json`, which names the others by their
digests. Without its manifest a package is not whole, and nothing ever writes over one that is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from mesh.errors import LaunchError, SchemaError, UsageError
from mesh.launch.bench_data import MAX_DATA_BYTES, BenchData, check_times, read_data, read_json
from mesh.launch.toml_file import Table

REPORT, DATA, LOG, RECIPE, MANIFEST = ".md", ".json", ".log", ".recipe.toml", ".manifest.json"
PARTS = (REPORT, DATA, LOG, RECIPE)
REPORTS_FOLDER = "reports"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class FileOf(Table):
    sha256: str
    bytes: int


class NodeOf(Table):
    """What a rank ran on, as it was seen when the bench ended. `program` is of the executable, in hex."""

    node: str
    rank: int
    image: str | None = None
    labels: dict[str, str] = {}  # noqa: RUF012  copied by pydantic
    program: str | None = None
    machine: dict[str, str] = {}  # noqa: RUF012


class Manifest(Table):
    """`files` are the other parts by their suffix. `drift` is what had changed since the launch when the bench ended,
    `unknown` what could not be looked at."""

    v: str
    stem: str
    label: str
    recipe: str
    run: str
    model: str
    cluster: str
    recipe_sha256: str
    config_sha256: dict[str, str]
    launch_digest: str | None = None
    nodes: list[NodeOf]
    launcher: dict[str, str]
    drift: list[str]
    unknown: list[str]
    began_ms: int
    ended_ms: int
    files: dict[str, FileOf]

    def to_json(self) -> bytes:
        return json.dumps(self.model_dump(exclude_none=True), indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Package:
    """One that is whole: each part is the one that its manifest names."""

    path: Path
    manifest: Manifest
    data: BenchData

    @property
    def chip(self) -> str:
        """Where the figures come from, in a word: image or program, recipe, launch."""
        ran = self.manifest.nodes[0] if self.manifest.nodes else None
        words = [f"rcp@{self.manifest.recipe_sha256[:12]}"]
        if ran is not None and ran.image is not None:
            words.insert(0, f"img@{ran.image.rpartition(':')[2][:12]}")
        elif ran is not None and ran.program is not None:
            words.insert(0, f"prg@{ran.program[:12]}")
        if self.manifest.launch_digest is not None:
            words.append(f"run@{self.manifest.launch_digest.rpartition(':')[2][:12]}")
        return "·".join(words)


def stem_of(label: str, utc_text: str) -> str:
    """Raises UsageError for a label that is no part of a file's name."""
    if not _LABEL.fullmatch(label):
        raise UsageError(f"label {label[:80]!r}: expected letters, digits, dots, - and _, at most 64")
    return f"{utc_text}_{label}"


def digests(parts: Mapping[str, bytes]) -> dict[str, FileOf]:
    return {suffix: FileOf(sha256=sha256(data).hexdigest(), bytes=len(data)) for suffix, data in parts.items()}


def check_free(folder: Path, stem: str) -> None:
    """Raises LaunchError where a part of that stem is there."""
    for suffix in (*PARTS, MANIFEST):
        if os.path.lexists(folder / f"{stem}{suffix}"):
            raise LaunchError(f"{folder / stem}{suffix}: is there already, and is not written over")


def land(folder: Path, stem: str, parts: Mapping[str, bytes], manifest: Manifest) -> Path:
    """Write a package whole, or leave nothing of it. Its manifest's path. Raises LaunchError where one of that stem is
    there, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    check_free(folder, stem)
    whole = {**parts, MANIFEST: manifest.to_json()}
    beside = Path(tempfile.mkdtemp(prefix=f".{stem}.", dir=folder))
    landed: list[Path] = []
    try:
        for suffix, data in whole.items():
            _write(beside / f"part{suffix}", data)
        for suffix in whole:  # the manifest is the last, and makes it one
            path = folder / f"{stem}{suffix}"
            os.link(beside / f"part{suffix}", path)  # never over another
            landed.append(path)
        _sync(folder)
    except BaseException as e:
        for path in landed:
            path.unlink(missing_ok=True)
        if isinstance(e, FileExistsError):
            raise LaunchError(f"{folder / stem}: another package landed there meanwhile") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder / f"{stem}{MANIFEST}"


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_package(path: Path) -> Package:
    """Of a manifest, or of any part beside one. Raises SchemaError naming the file at fault and what is wrong with it,
    OSError."""
    at = manifest_at(path)
    manifest = read_json(Manifest, _read(at), str(at))
    check_times(manifest.began_ms, manifest.ended_ms, str(at))
    stem = at.name.removesuffix(MANIFEST)
    if manifest.stem != stem:
        raise SchemaError(f"{at}: is of {manifest.stem[:120]!r}: a package whose files were renamed")
    if set(manifest.files) != set(PARTS):
        raise SchemaError(f"{at}: files: {', '.join(sorted(manifest.files))}, expected {', '.join(sorted(PARTS))}")
    data = b""
    for suffix, named in manifest.files.items():
        part = at.with_name(f"{stem}{suffix}")
        try:
            read = _read(part)
        except FileNotFoundError:
            raise SchemaError(f"{part}: missing, and its manifest names it") from None
        digest = sha256(read).hexdigest()
        if digest != named.sha256:
            raise SchemaError(f"{part}: damaged: sha256 is {digest[:12]}, its manifest says {named.sha256[:12]}")
        data = read if suffix == DATA else data
    bench = read_data(data, f"{at.with_name(stem)}{DATA}")
    for name in ("recipe", "run", "model"):
        if getattr(bench, name) != getattr(manifest, name):
            raise SchemaError(f"{at}: {name} is not the one of its data")
    return Package(at, manifest, bench)


def manifest_at(path: Path) -> Path:
    for suffix in (MANIFEST, RECIPE, DATA, LOG, REPORT):
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix) + MANIFEST)
    return path.with_name(path.name + MANIFEST)


def packages_in(folder: Path) -> Iterator[Package | SchemaError]:
    """Those of a folder, oldest first, and of each that is damaged or not whole, what is wrong with it."""
    stems = sorted({path.name.removesuffix(MANIFEST) for path in folder.glob(f"*{MANIFEST}")})
    lone = {path.name.removesuffix(DATA) for path in folder.glob(f"*_*{DATA}") if not path.name.endswith(MANIFEST)}
    for stem in sorted({*stems, *lone}):
        if stem not in stems:
            yield SchemaError(f"{folder / stem}{DATA}: no manifest: a bench that did not end, or part of a package")
            continue
        try:
            yield load_package(folder / f"{stem}{MANIFEST}")
        except SchemaError as e:
            yield e
        except OSError as e:
            yield SchemaError(f"{folder / stem}: {(e.strerror or str(e)).lower()}")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_DATA_BYTES + 1)
    if len(data) > MAX_DATA_BYTES:
        raise SchemaError(f"{path}: over {MAX_DATA_BYTES} bytes")
    return data
