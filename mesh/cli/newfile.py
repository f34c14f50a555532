"""Writing what a command makes: whole or not at all, and over nothing but what it was told to write again."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PUBLIC = 0o644
PRIVATE = 0o600  # disclosures hold prompts and answers


def check_new(path: Path) -> None:
    """Raises OSError where `write_new` would, as far as that can be known without writing."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not stat.S_ISDIR(os.stat(path.parent).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent))


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
    """Raises OSError, FileExistsError where `path` exists. What a failure leaves half written is removed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with naming(path), os.fdopen(fd, "wb") as file:
            file.writelines(chunks)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


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
