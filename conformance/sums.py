"""SHA256SUMS of a folder, as `sha256sum -c` reads it, and the files that are held to it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\0].*)")
_SHOWN = 80


class CannotRun(Exception):
    """The pack is damaged, or the client is not there. Says nothing about a client."""


def text_of(path: Path) -> str:
    """Raises CannotRun, with the file's name."""
    try:
        return path.read_bytes().decode()
    except OSError as e:
        raise CannotRun(f"{path}: {(e.strerror or str(e)).lower()}") from None
    except UnicodeDecodeError as e:
        raise CannotRun(f"{path}: not text in UTF-8: byte {e.start} is 0x{e.object[e.start]:02x}") from None


def read_sums(path: Path) -> dict[str, str]:
    """The digest of each file, by its path. Raises CannotRun."""
    sums = {}
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CannotRun(
                f"{path}: line {number}: expected a SHA-256 of 64 hex digits, two spaces and a path, "
                f"got {line[:_SHOWN]!r}"
            )
        sums[match[2]] = match[1]
    return sums


def held(folder: Path, name: str, digest: str, by: str = SUMS) -> bytes:
    """The bytes of a file that has the `digest` which `by` gives. Raises CannotRun."""
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as e:
        raise CannotRun(f"{path}: {(e.strerror or str(e)).lower()}, and {by} names it") from None
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise CannotRun(f"{path}: not the file that {by} names: expected SHA-256 {digest}, got {found}")
    return data
