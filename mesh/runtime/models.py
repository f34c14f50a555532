"""The models of a candidate on this machine: where each lies, and whether it is what its pin says."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mesh.errors import ModelFileError
from mesh.identity.files import FileIdentity, open_regular
from mesh.runtime.artifacts import GgufFile, Snapshot
from mesh.runtime.candidate import Candidate
from mesh.runtime.engine import ARTIFACT

_CHUNK: Final = 1 << 20
# What Hugging Face's own client leaves beside what it fetched: the commit, the file's hash, when.
_FETCHED: Final = Path(".cache", "huggingface", "download")
_MAX_NOTE_BYTES: Final = 4096
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int, int], None]


def located(candidate: Candidate, models: Path) -> dict[str, Path]:
    """Each artifact by its name: a file, or the folder of a snapshot, below the folder `models`. Raises
    FileNotFoundError naming the first that is not there and where it was looked for, ModelFileError for one that is of
    another kind, OSError."""
    found: dict[str, Path] = {}
    for artifact in candidate.artifacts:
        path = models / artifact.folder
        if isinstance(artifact, GgufFile):
            path /= artifact.filename
        try:
            kind = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            why = f"{os.strerror(errno.ENOENT)}, where artifact {artifact.name!r} should be"
            raise FileNotFoundError(errno.ENOENT, why, str(path)) from None
        expected, is_ = ("file", stat.S_ISREG) if isinstance(artifact, GgufFile) else ("folder", stat.S_ISDIR)
        if not is_(kind):
            raise ModelFileError(f"artifact {artifact.name!r}: no {expected} at {path}")
        found[artifact.name] = path
    return found


def resolved(arguments: list[str], paths: dict[str, Path]) -> list[str]:
    """The arguments with the path of each artifact in place of its name."""
    return [str(paths[found[1]]) if (found := ARTIFACT.fullmatch(each)) else each for each in arguments]


def check_pins(candidate: Candidate, paths: dict[str, Path], *, progress: Progress | None = None) -> None:
    """Hold every artifact to its pin: a GGUF file by the SHA-256 of its bytes; a snapshot, whose pin is a commit that
    no file repeats, by what the client that fetched it wrote down, where it did. Raises ModelFileError, OSError."""
    for artifact in candidate.artifacts:
        path = paths[artifact.name]
        if isinstance(artifact, GgufFile):
            _check_file(artifact, path, progress)
        else:
            _check_snapshot(artifact, path)


def _check_file(artifact: GgufFile, path: Path, progress: Progress | None) -> None:
    with open_regular(path) as file:
        before = FileIdentity.of(path, file.fileno())
        if artifact.bytes is not None and before.size != artifact.bytes:
            raise ModelFileError(f"artifact {artifact.name!r}: {before.size} bytes, expected {artifact.bytes}")
        hasher, done = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, before.size)
        if (changed := before.changed()) is not None:
            raise ModelFileError(f"artifact {artifact.name!r}: {changed}: changed while it was read")
    if hasher.hexdigest() != artifact.sha256:
        raise ModelFileError(f"artifact {artifact.name!r}: sha256 is {hasher.hexdigest()}, expected {artifact.sha256}")


def _check_snapshot(artifact: Snapshot, folder: Path) -> None:
    notes = folder / _FETCHED
    for note in sorted(notes.rglob("*.metadata")) if notes.is_dir() else ():
        with open_regular(note) as opened:
            lines = opened.read(_MAX_NOTE_BYTES).decode("utf-8", "replace").split()
        name = note.relative_to(notes).as_posix().removesuffix(".metadata")
        if not os.path.lexists(folder / name):
            continue  # fetched once and taken away again
        if lines and lines[0] != artifact.revision:
            raise ModelFileError(
                f"artifact {artifact.name!r}: {name} is of revision {lines[0][:80]!a}, expected {artifact.revision}"
            )
        if len(lines) > 1 and _SHA256.fullmatch(lines[1]):  # of large files; small ones have git's own hash
            found = _sha256(folder / name)
            if found != lines[1]:
                raise ModelFileError(f"artifact {artifact.name!r}: {name}: sha256 is {found}, expected {lines[1]}")


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()
