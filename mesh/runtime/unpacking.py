"""A pack made into a folder again: all of it or nothing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mesh.errors import PackError
from mesh.identity.files import open_regular
from mesh.runtime.archive import read_pack
from mesh.runtime.descriptor import PackedFile
from mesh.runtime.packing import Packed, Progress


def verify(pack: Path, *, progress: Progress | None = None) -> Packed:
    """Read a pack to its end and write nothing. Raises PackError, CandidateError, ModelFileError for what is no
    regular file, OSError."""
    with open_regular(pack) as file:
        return read_pack(file, progress=progress)


def unpack(pack: Path, target: Path, *, progress: Progress | None = None) -> Packed:
    """Verify `pack` and write its files into the folder `target`, which must be new or empty. They are written into a
    folder beside it, which then takes its name; a pack that is refused leaves nothing. Raises as `verify` does."""
    _check_target(target)
    with open_regular(pack) as file:
        first = read_pack(file, progress=None if progress is None else _half(progress, 0))
        file.seek(0)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            with ExitStack() as writing:
                again = read_pack(
                    file,
                    sink=lambda member: _writer(beside, member, writing),
                    progress=None if progress is None else _half(progress, 1),
                )
            if again.archive_sha256 != first.archive_sha256:
                raise PackError(f"{pack.name}: changed while it was unpacked")
            beside.chmod(0o755)
            os.rename(beside, target)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    return first


def _check_target(target: Path) -> None:
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent))
        return
    if target.is_symlink() or not target.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if os.listdir(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.ENOTEMPTY), str(target))


def _writer(root: Path, member: PackedFile, writing: ExitStack) -> Callable[[bytes], object]:
    """All folders on the way are ones that this unpacking made, and no member is a link."""
    writing.close()  # what was written before is whole
    path = root / member.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, member.mode)
    file = writing.enter_context(os.fdopen(fd, "wb"))
    os.fchmod(fd, member.mode)  # whatever the umask says
    return file.write


def _half(progress: Progress, half: int) -> Progress:
    return lambda done, total: progress(half * total + done, 2 * total)
