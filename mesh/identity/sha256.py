"""SHA-256 of files, for digests that others publish too. Nothing but the standard library is needed here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from mesh.identity.files import open_regular


def sha256_listing(files: Mapping[str, Path]) -> list[list[str]]:
    """Each of `files`, keyed by their logical names, as [name, 64 hex digits], sorted by the names' UTF-8 bytes. Raises
    ModelFileError for what is no file, OSError where one cannot be read."""
    listing = []
    for name in sorted(files, key=str.encode):
        with open_regular(files[name]) as file:
            listing.append([name, hashlib.file_digest(file, "sha256").hexdigest()])
    return listing
