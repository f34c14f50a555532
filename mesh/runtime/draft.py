"""What is made out of sight and takes its name once it is whole: a file, a folder.

A file has no name until then, where the system can do that: whatever ends this process leaves nothing of it. A folder
has to have one, `.mesh-draft-` and more, and is locked while it is made; what one that was killed left behind goes with
the next one that is made beside it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = ".mesh-draft-"
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0)  # of Linux alone
_NO_UNNAMED: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)  # file systems and kernels that cannot
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


@contextmanager
def new_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A file to write, which is at `path` once the block has ended well, and never over another. Raises
    FileExistsError, OSError."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with _named(path), _opened(path.parent) as folder:
        unnamed = _open_unnamed(path.parent, mode)
        if unnamed is not None:
            with os.fdopen(unnamed, "wb") as file:
                yield file
                file.flush()
                # through a folder's descriptor, as only then does Python follow the link to what has no name
                os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=folder, follow_symlinks=True)
            return
        _sweep(path.parent)
        with _locked(path.parent, mode, is_folder=False) as (draft, fd), os.fdopen(os.dup(fd), "wb") as file:
            yield file
            file.flush()
            try:
                os.link(draft, path)
            except OSError as e:
                if e.errno not in _NO_LINKS or os.path.lexists(path):
                    raise
                os.rename(draft, path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which is at `path` once the block has ended well; an empty one may be there. Raises
    FileExistsError, OSError."""
    with _named(path):
        _sweep(path.parent)
        with _locked(path.parent, 0o700, is_folder=True) as (draft, fd):
            yield draft
            os.fchmod(fd, 0o755)
            os.rename(draft, path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A write that fails, as on a full disk, does not say which, and the name of a draft says nothing."""
    try:
        yield
    except OSError as e:
        if e.filename is None or PREFIX in str(e.filename) or str(e.filename).startswith("/proc/self/fd/"):
            raise type(e)(e.errno, os.strerror(e.errno or 0), str(path)) from None
        raise


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_unnamed(folder: Path, mode: int) -> int | None:
    """None where a file has to have a name."""
    if not _UNNAMED or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, _UNNAMED | os.O_WRONLY, mode)
    except OSError as e:
        if e.errno not in _NO_UNNAMED:
            raise
        return None


@contextmanager
def _locked(folder: Path, mode: int, *, is_folder: bool) -> Iterator[tuple[Path, int]]:
    """A draft that nobody sweeps, and a descriptor of it; gone when the block ends, unless it has another name then."""
    while True:
        draft = folder / f"{PREFIX}{secrets.token_hex(8)}"
        if is_folder:
            draft.mkdir(mode)
            fd = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        else:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with contextlib.suppress(OSError):  # where nothing can be locked, nothing is swept either
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_at(draft, fd):  # swept before it was locked
                continue
            try:
                yield draft, fd
            finally:
                _remove(draft, fd)
            return
        finally:
            os.close(fd)


def _sweep(folder: Path) -> None:
    """Remove what was left behind, of this user and in this folder; what nobody can remove stays."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder may take files and not show them
        names = os.listdir(folder)
    for name in names:
        if name.startswith(PREFIX):
            with contextlib.suppress(OSError):
                fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(fd).st_uid == os.geteuid():
                        _remove(folder / name, fd)
                finally:
                    os.close(fd)


def _remove(draft: Path, fd: int) -> None:
    if not _is_at(draft, fd):
        return
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def _is_at(path: Path, fd: int) -> bool:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (seen.st_dev, seen.st_ino) == (held.st_dev, held.st_ino)
