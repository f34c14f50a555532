"""Which file was read: what tells that it is still the one that was digested, without reading it again."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from mesh.errors import ModelFileError


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises ModelFileError where the path leads to anything else (a pipe would block, a
    device never ends) and OSError where it cannot be opened."""
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    except IsADirectoryError:
        raise ModelFileError(f"{path.name}: not a regular file") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ModelFileError(f"{path.name}: not a regular file")
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    """Opening a pipe waits for a writer, before anybody can look at what was opened."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The file behind a path at one moment; links are followed, so a re-pointed one shows as another inode.

    The change time is the one attribute that a writer cannot set back, which is why the modification time alone would
    not do. `size` is in bytes, the times are Unix nanoseconds.
    """

    path: Path
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path, fd: int | None = None) -> FileIdentity:
        """Of what `path` leads to now, or of the open file `fd` that it led to. Raises OSError."""
        seen = os.stat(path if fd is None else fd)
        return cls(path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)

    def difference(self, now: FileIdentity) -> str | None:
        """The first attribute that differs, with both values; None where all agree."""
        for attribute in ("device", "inode", "size", "mtime_ns", "ctime_ns"):
            was, is_ = getattr(self, attribute), getattr(now, attribute)
            if was != is_:
                return f"{self.path.name}: {attribute} was {was}, now {is_}"
        return None

    def changed(self) -> str | None:
        """What is no longer as it was, naming the file and the attribute; None where nothing is."""
        try:
            return self.difference(FileIdentity.of(self.path))
        except OSError as e:
            return f"{self.path.name}: {e.strerror or e}"
