"""How far an audit has come: a file to which each replay is added as it is judged, so that a run that was killed goes
on where it was, and ends in the same report.

The first line says which audit it is, the others are one verdict each. A line that a crash left half written is cut
off.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from mesh.cli.newfile import PRIVATE, naming
from mesh.errors import SchemaError, UsageError
from mesh.replay.judged import Judged

_FORMAT = "mesh-audit-journal/1"
_START = json.dumps({"format": _FORMAT}, separators=(",", ":")).encode()[:-1]
_SYNC_S = 1.0  # between two waits for the disk: what the kernel has survives the death of this process without


class Journal:
    """Raises UsageError for a file that is none, that another audit began, or that one is writing now; OSError."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._synced = time.monotonic()

    @classmethod
    def open(cls, path: Path) -> Self:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"--resume {path}: another audit is writing it") from None
            # before anything is cut: what somebody named by mistake stays as it is
            start = os.pread(fd, len(_START), 0)
            if not _START.startswith(start):
                raise UsageError(f"--resume {path}: is no journal of an audit")
            _cut_torn_line(fd)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd)

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)

    def begun(self) -> dict[str, Any] | None:
        """What the first line says of the audit; None in a new file."""
        first = next(self._lines(), None)
        if first is None:
            return None
        if not isinstance(first, dict) or first.get("format") != _FORMAT:
            raise UsageError(f"--resume {self._path}: is no journal of an audit")
        return {name: value for name, value in first.items() if name != "format"}

    def begin(self, about: Mapping[str, Any]) -> None:
        """Say which audit this is, or find that it was said before."""
        before = self.begun()
        if before is None:
            self._write({"format": _FORMAT, **about})
            return
        for name in sorted({*before, *about}):
            if before.get(name) != about.get(name):
                raise UsageError(
                    f"--resume {self._path}: was begun by another audit: {name} was {_short(before.get(name))}, now "
                    f"{_short(about.get(name))}"
                )

    def judged(self) -> Iterator[Judged]:
        """The verdicts that are there."""
        for number, line in enumerate(self._lines(), 1):
            if number == 1:
                continue
            try:
                if not isinstance(line, dict):
                    raise SchemaError("not an object")
                yield Judged.from_json(line)
            except SchemaError as e:
                raise UsageError(f"--resume {self._path}: line {number}: {e}") from None

    def add(self, one: Judged) -> None:
        self._write(one.to_json())

    def _write(self, line: Mapping[str, Any]) -> None:
        left = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with naming(self._path):
            # a line is there whole, or torn at the end of the file: a disk that is nearly full takes a part without a
            # word, and says why with the rest
            while left:
                left = left[os.write(self._fd, left) :]
            if time.monotonic() - self._synced > _SYNC_S:
                os.fsync(self._fd)
                self._synced = time.monotonic()

    def _lines(self) -> Iterator[Any]:
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    raise UsageError(f"--resume {self._path}: line {number}: not JSON") from None


def _cut_torn_line(fd: int) -> None:
    size = end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:119] + "…"
