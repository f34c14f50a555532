"""A pack made into a folder again: all of it or nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mesh.errors import PackError
from mesh.identity.files import open_regular
from mesh.runtime.archive import read_pack
from mesh.runtime.descriptor import PackedFile
from mesh.runtime.draft import new_folder
from mesh.runtime.packing import Packed, Progress


def verify(pack: Path, *, progress: Progress | None = None) -> Packed:
    """Read a pack to its end and write nothing. Raises PackError, CandidateError, ModelFileError for what is no
    regular file, OSError."""
    with open_regular(pack) as file:
        return read_pack(file, progress=progress)


def unpack(pack: Path, target: Path, *, progress: Progress | None = None) -> Packed:
    """Verify `pack` and write its files into the folder `target`, which must be new or empty and is there once it is
    whole. Raises as `verify` does."""
    _check_target(target)
    with open_regular(pack) as file:
        first = read_pack(file, progress=None if progress is None else _half(progress, 0))
        file.seek(0)
        with new_folder(target) as draft:
            folders: set[Path] = {draft}
            with ExitStack() as writing:
                again = read_pack(
                    file,
                    sink=lambda member: _writer(draft, member, folders, writing),
                    progress=None if progress is None else _half(progress, 1),
                )
            if again.archive_sha256 != first.archive_sha256:
                raise PackError(f"{pack.name}: changed while it was unpacked")
    return first


def _check_target(target: Path) -> None:
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent))
        return
    if target.is_symlink() or not target.is_dir() or target.name in ("", ".."):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if os.listdir(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.ENOTEMPTY), str(target))


def _writer(root: Path, member: PackedFile, folders: set[Path], writing: ExitStack) -> Callable[[bytes], object]:
    """All `folders` on the way are ones that this unpacking made, and no member is a link."""
    writing.close()  # what was written before is whole
    path = root / member.path
    missing = []
    above = path.parent
    while above not in folders:
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        folder.mkdir(0o755)
        folders.add(folder)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode)
    file = writing.enter_context(os.fdopen(fd, "wb"))
    os.fchmod(fd, member.mode)  # whatever the umask says
    return file.write


def _half(progress: Progress, half: int) -> Progress:
    return lambda done, total: progress(half * total + done, 2 * total)
