"""The paths in a pack: checked and never repaired, the same for whoever packs and whoever unpacks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from mesh.errors import PackError
from mesh.runtime.limits import MAX_COMPONENT_BYTES, MAX_PATH_BYTES

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
    composes them, also of their folders; or a file and a folder. Raises PackError naming both."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            spelled = "/".join(parts[:depth])
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", spelled).casefold())
            file = depth == len(parts)
            clash = files.get(folded) or (folders.get(folded) if file else None)
            if clash is not None:
                raise PackError(f"member {shown_path(path)}: {_collision(spelled, clash, path, file, folded in files)}")
            if not file and folders.setdefault(folded, spelled) != spelled:
                raise PackError(f"member {shown_path(path)}: its folder collides with {shown_path(folders[folded])}")
        files[folded] = path


def _collision(spelled: str, clash: str, path: str, file: bool, over_file: bool) -> str:
    if spelled == clash:
        return "there twice" if file and over_file else f"{shown_path(spelled)} is a file and a folder"
    return f"collides with {shown_path(clash)} where case or composition does not count"


def shown_path(path: str) -> str:
    text = path if len(path) <= 120 else path[:120] + "..."
    return repr(text) if text.isprintable() else ascii(text)
