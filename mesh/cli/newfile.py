"""Writing what a command makes: whole or not at all, and over nothing but what it was told to write again."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PUBLIC = 0o644
PRIVATE = 0o600  # disclosures hold prompts and answers
_NAME_CHARACTERS = 40  # of a name, in that of what is not done yet: together they must not be too long


def check_new(path: Path) -> None:
    """Raises OSError where `write_new` would, as far as that can be known without writing."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not stat.S_ISDIR(os.stat(path.parent).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """A write that fails on an open file does not say which: its OSError gets the name of `path`."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


def write_new(path: Path, chunks: Iterable[bytes], *, mode: int = PUBLIC) -> None:
    """Raises OSError, FileExistsError where `path` exists. It is written under another name and gets its own when it is
    whole: whoever is killed meanwhile leaves a hidden file behind, and none that looks done."""
    check_new(path)
    beside = path.with_name(f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}.part")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as e:
        e.filename = str(path)
        raise
    try:
        with naming(path), os.fdopen(fd, "wb") as file:
            file.writelines(chunks)
        _name(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _name(beside: Path, path: Path) -> None:
    """Give what is `beside` its name, unless somebody took that meanwhile."""
    try:
        os.link(beside, path)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    except OSError:  # a file system without links
        check_new(path)
        os.rename(beside, path)


def rewrite(path: Path, data: bytes) -> None:
    """Put `data` in the place of the file at `path`, which keeps its mode: whoever reads sees the one or the other.
    Raises OSError."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    write_new(beside, [data], mode=stat.S_IMODE(os.stat(target).st_mode))
    try:
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
