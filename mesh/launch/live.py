"""The last look at the fleet, in the state folder: written by whoever looks, read by whoever shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.errors import LaunchError

if TYPE_CHECKING:
    from mesh.launch.fleet import Fleet

LIVE_FILE = "live.json"
FORMAT = "mesh-launch-live/1"
MAX_LIVE_BYTES = 4 << 20


def write_live(folder: Path, fleet: Fleet, every_s: int) -> None:
    """`every_s` is when the next look will be: a reader holds one that is much older for no look at all. Whoever reads
    sees the old or the new. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"v": FORMAT, "every_s": every_s, **fleet.to_map()}).encode()
    beside = folder / f".{LIVE_FILE}.{os.getpid()}"
    try:
        beside.write_bytes(data)
        os.replace(beside, folder / LIVE_FILE)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_live(folder: Path) -> dict[str, Any] | None:
    """None where nobody looked yet. Raises LaunchError for a file that is none of ours, OSError."""
    path = folder / LIVE_FILE
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LIVE_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_LIVE_BYTES:
        raise LaunchError(f"{path}: over {MAX_LIVE_BYTES} bytes")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        raise LaunchError(f"{path}: damaged: not valid json") from None
    if not isinstance(told, dict) or told.get("v") != FORMAT:
        found = told.get("v") if isinstance(told, dict) else type(told).__name__
        raise LaunchError(f"{path}: version is {str(found)[:80]!r}, expected {FORMAT!r}")
    for key, kind in (("at_ns", int), ("every_s", int), ("clusters", list), ("damaged", dict)):
        if not isinstance(told.get(key), kind):
            raise LaunchError(f"{path}: damaged: {key} is no {kind.__name__}")
    return told
