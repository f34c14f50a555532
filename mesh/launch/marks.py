"""Marks of a model's files, taken on this machine as nodes take them (`staging`), so that a folder here can be held to
what was found there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from mesh.launch.staging import SAMPLE_BYTES, SAMPLES

SAMPLED_OVER_BYTES = SAMPLE_BYTES * (SAMPLES + 1)
_CHUNK_BYTES = 1 << 20


def mark(path: Path, *, full: bool = False) -> str:
    """SHA-256 in hex of the whole file, or of its size and samples where it is large and not `full`. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if full or size <= SAMPLED_OVER_BYTES:
            digest = sha256()
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
        digest = sha256(f"{size}\n".encode())
        for number in range(SAMPLES):
            file.seek(size // SAMPLES * number // SAMPLE_BYTES * SAMPLE_BYTES)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(size - SAMPLE_BYTES)
        digest.update(file.read(SAMPLE_BYTES))
        return digest.hexdigest()


def listing(model: Path, *, full: bool = False) -> str:
    """A line `mark name` for each file of a folder, by the bytes of its names, or for the file itself. Raises
    OSError."""
    if model.is_file():
        return f"{mark(model, full=full)} {model.name}"
    names = sorted(_files(model), key=os.fsencode)
    return "\n".join(f"{mark(model / name, full=full)} {name}" for name in names)


def _files(folder: Path) -> Iterator[str]:
    """Paths below it; of a link to a folder nothing is a file of the model."""
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def large(model: Path) -> bool:
    """Whether any of its files is only sampled unless all bytes are asked for."""
    paths = [model] if model.is_file() else [model / name for name in _files(model)]
    return any(path.stat().st_size > SAMPLED_OVER_BYTES for path in paths)
