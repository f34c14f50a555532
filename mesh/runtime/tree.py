"""Which files of a candidate's folder are packed, in which order, with which mode."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mesh.errors import PackError
from mesh.runtime.candidate import DOCUMENT
from mesh.runtime.limits import MAX_FILES, MAX_PATH_BYTES, MAX_PAYLOAD_BYTES
from mesh.runtime.names import check_path, check_together, shown_path
from mesh.runtime.release import DOCUMENT as RELEASE

DESCRIPTOR: Final = "letsinfer-runtime.json"
EXECUTABLE: Final = 0o755
PLAIN: Final = 0o644
_FOLDERS: Final = (".git", "__pycache__")
_NAMES: Final = (DESCRIPTOR, ".DS_Store")
_SUFFIXES: Final = (".pyc", ".pyo", ".letsinfer")
_EVIDENCE: Final = "benchmark.md"  # refused at the top: it is published elsewhere, and nobody should think it packed


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`path` is relative, with slashes; `size` in bytes, `mode` one of two."""

    path: str
    file: Path
    size: int
    mode: int


def source_files(source: Path) -> list[SourceFile]:
    """What would be packed, by path in the order of code points. Raises PackError naming what cannot be, OSError."""
    if not stat.S_ISDIR(os.stat(source).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(source))
    name = source.resolve().name
    files: list[SourceFile] = []
    total = 0
    for file in _walk(source):
        files.append(file)
        total += file.size
        if len(files) > MAX_FILES:
            raise PackError(f"{name}: expected at most {MAX_FILES} files, and there are more")
        if total > MAX_PAYLOAD_BYTES:
            raise PackError(f"{name}: expected at most {MAX_PAYLOAD_BYTES} bytes of files, and there are more")
    files.sort(key=lambda file: file.path)
    check_together(file.path for file in files)
    if all(file.path != DOCUMENT for file in files):
        raise PackError(f"{name}: no {DOCUMENT}")
    return files


def _walk(source: Path) -> Iterator[SourceFile]:
    folders = [(source, "")]
    while folders:
        folder, prefix = folders.pop()
        if len(os.fsencode(prefix)) > MAX_PATH_BYTES:  # the system's own limit would end in an error of the system
            raise PackError(f"member {shown_path(prefix)}: over {MAX_PATH_BYTES} bytes")
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                seen = entry.stat(follow_symlinks=False)
                if entry.name in _FOLDERS:
                    continue
                if stat.S_ISDIR(seen.st_mode):
                    folders.append((folder / entry.name, f"{path}/"))
                    continue
                if _ignored(path, entry.name):
                    continue
                if not stat.S_ISREG(seen.st_mode):
                    raise PackError(f"member {shown_path(path)}: {kind_of(seen.st_mode)}, expected a regular file")
                if path == _EVIDENCE:
                    raise PackError(
                        f"member {_EVIDENCE!r}: benchmark evidence is published beside a candidate, not in it"
                    )
                check_path(path)
                mode = EXECUTABLE if seen.st_mode & 0o111 else PLAIN
                yield SourceFile(path, folder / entry.name, seen.st_size, mode)


def _ignored(path: str, name: str) -> bool:
    """Of what is no folder; a link of such a name is left out like a file."""
    if name in _NAMES or path == RELEASE:
        return True
    if any(name.endswith(suffix) and len(name) > len(suffix) for suffix in _SUFFIXES):
        return True
    return "/" not in path and name.startswith("benchmark") and name.endswith(".json")


def kind_of(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a symbolic link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISBLK, "a device"), (stat.S_ISCHR, "a device"), (stat.S_ISDIR, "a folder"),
    )  # fmt: skip
    return next((name for is_, name in kinds if is_(mode)), "a special file")
