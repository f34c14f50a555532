"""The name of a model's weights: a digest over every byte of every file that loading them reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from blake3 import blake3

from mesh.errors import ModelFileError
from mesh.identity.files import FileIdentity, open_regular
from mesh.identity.folder import folder_files
from mesh.identity.model import read_model
from mesh.schema.ids import ContentId

Progress = Callable[[str, int], None]
"""Called with a file's name and its size in bytes once it has been read."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """One file of the digest: its name there, the BLAKE3 of its bytes, and the file they were read from."""

    name: str
    id: ContentId
    identity: FileIdentity


@dataclass(frozen=True, slots=True)
class Weights:
    """`files` are sorted by the UTF-8 bytes of their names, as they are in the digest."""

    digest: ContentId
    files: tuple[WeightsFile, ...]

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.identity.size for file in self.files)

    def changed(self) -> str | None:
        """What is no longer as it was digested, naming the file and the attribute; None where nothing is. Costs one
        stat for each file."""
        for file in self.files:
            if (difference := file.identity.changed()) is not None:
                return difference
        return None


def digest_files(files: Mapping[str, Path], *, progress: Progress | None = None) -> Weights:
    """Read every byte of `files`, keyed by their logical names: relative POSIX paths.

    Raises ModelFileError for a name that is no such path, a file that is none, or one that changes while it is read;
    OSError where one cannot be read.
    """
    if not files:
        raise ModelFileError("weights: no files")
    digested = []
    for name in sorted(files, key=_checked_name):
        digested.append(_digest_file(name, files[name]))
        if progress is not None:
            progress(name, digested[-1].identity.size)
    listing = [[file.name, bytes(file.id)] for file in digested]
    return Weights(ContentId.of("weights", {"files": listing}), tuple(digested))


def weights_digest(files: Mapping[str, Path]) -> ContentId:
    """The digest alone; see `digest_files`."""
    return digest_files(files).digest


def gguf_weights(path: Path, *, progress: Progress | None = None) -> Weights:
    """Of a GGUF model, given as its file, any of its shards or their folder; its headers are checked first."""
    return digest_files(read_model(path).logical_files, progress=progress)


def folder_weights(path: Path, *, progress: Progress | None = None) -> Weights:
    """Of a Hugging Face model folder."""
    return digest_files(folder_files(path), progress=progress)


def weights_at(path: Path, *, progress: Progress | None = None) -> Weights:
    """Of whatever model `path` leads to: a folder with a config.json is a Hugging Face one, all else is GGUF."""
    if (path / "config.json").exists():
        return folder_weights(path, progress=progress)
    return gguf_weights(path, progress=progress)


def _checked_name(name: str) -> bytes:
    """The sort key of a name. Only one spelling of a path is a name."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or name != str(path):
        raise ModelFileError(f"weights: {name!r} is not a plain relative path")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise ModelFileError(f"weights: the name {name!r} is not valid unicode") from None


def _digest_file(name: str, path: Path) -> WeightsFile:
    with open_regular(path) as file:
        before = FileIdentity.of(path, file.fileno())
        hasher = blake3(max_threads=blake3.AUTO)
        # Through the descriptor, so that the bytes are those of the file whose identity is kept.
        hasher.update_mmap(_path_of(file.fileno(), path))
    if (difference := before.changed()) is not None:
        raise ModelFileError(f"{difference}: changed while it was read", field=name)
    return WeightsFile(name, ContentId(hasher.digest()), before)


def _path_of(fd: int, path: Path) -> str:
    alias = f"/dev/fd/{fd}"
    return alias if os.path.exists(alias) else os.fspath(path)
