"""The paths in a pack: checked and never repaired, the same for whoever packs and whoever unpacks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from mesh.errors import PackError
from mesh.runtime.limits import MAX_COMPONENT_BYTES, MAX_FOLDERS, MAX_PATH_BYTES

_DRIVE: Final = re.compile(r"[A-Za-z]:")


def check_path(path: str) -> None:
    """Raises PackError for what is no plain relative path on every system."""
    fault = _fault(path)
    if fault is not None:
        raise PackError(f"member {shown_path(path)}: {fault}")


def _fault(path: str) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "not valid Unicode"
    parts = path.split("/")
    if not path:
        return "an empty path"
    if path.startswith("/") or _DRIVE.match(path):
        return "an absolute path"
    if ".." in parts:
        return "leads out of the folder with '..'"
    if "\\" in path:
        return "holds a backslash, which is a separator elsewhere"
    if any(unicodedata.category(c) == "Cc" or c in "\u2028\u2029" for c in path):
        return "holds a control character"
    if "" in parts or "." in parts:
        return "not the plain spelling of its path"
    if size > MAX_PATH_BYTES:
        return f"over {MAX_PATH_BYTES} bytes"
    if any(len(part.encode()) > MAX_COMPONENT_BYTES for part in parts):
        return f"a name over {MAX_COMPONENT_BYTES} bytes"
    return None


def check_together(paths: Iterable[str]) -> None:
    """Refuse paths of which a file system could hold only one: the same, or the same but for case or for how Unicode
    composes them, also of their folders; or a file and a folder; and more folders than so many files need. Raises
    PackError naming both."""
    # What could collide stands side by side once it is sorted folded, what lies in a folder right behind a file of its
    # name, as NUL is below whatever a name holds; so what is held here does not grow with the depth.
    ordered = sorted((_folded(path).replace("/", "\0"), path) for path in paths)
    folders = 0
    before, other = "", ""
    for now, path in ordered:
        if now == before:
            raise PackError(f"member {shown_path(path)}: {'there twice' if path == other else _collides(other)}")
        if other and now.startswith(before + "\0"):  # the other is a file
            inside = path.startswith(other + "/")
            fault = f"{shown_path(other)} is a file and a folder" if inside else _collides(other)
            raise PackError(f"member {shown_path(path)}: {fault}")
        folders += _new_folders(path, other)
        if folders > MAX_FOLDERS:
            raise PackError(f"member {shown_path(path)}: with it there are over {MAX_FOLDERS} folders")
        before, other = now, path


def _new_folders(path: str, other: str) -> int:
    """How many of the folders of `path` those of `other` are not. Raises PackError for one that collides."""
    mine, others = path.split("/")[:-1], other.split("/")[:-1]
    for depth, (folder, same) in enumerate(zip(mine, others, strict=False)):
        if folder != same:
            if _folded(folder) == _folded(same):
                raise PackError(f"member {shown_path(path)}: its folder {_collides('/'.join(others[: depth + 1]))}")
            return len(mine) - depth
    return max(len(mine) - len(others), 0)


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _collides(other: str) -> str:
    return f"collides with {shown_path(other)} where case or composition does not count"


def shown_path(path: str) -> str:
    text = path if len(path) <= 120 else path[:120] + "..."
    return repr(text) if text.isprintable() else ascii(text)
