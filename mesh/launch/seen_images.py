"""Images as they were last seen: on a node at a launch, or at a registry by `pin`. What vanishes can then be named."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEN_FILE = "images.json"
_GONE = re.compile(r"manifest unknown|not found|name unknown|no such manifest|repository does not exist", re.IGNORECASE)


def is_gone(said: str) -> bool:
    """Whether docker's last words of a pull are that the registry has no such image, and not that it was not asked."""
    return _GONE.search(said) is not None and "no such host" not in said.lower()


@dataclass(frozen=True, slots=True)
class SeenImages:
    """A file of what was seen, by the image's name as it was asked for. Losing it loses no launch."""

    path: Path

    def read(self) -> dict[str, dict[str, Any]]:
        try:
            known = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return (
            {key: value for key, value in known.items() if isinstance(value, dict)} if isinstance(known, dict) else {}
        )

    def add(self, image: str, *, what: str, where: str, at_ns: int) -> None:
        """`what` is the digest, or what docker called it; `where` a node or registry."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = {**self.read(), image: {"what": what, "where": where, "at_ns": at_ns}}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(part, self.path)

    def words(self, image: str) -> str:
        """When, where and as what it was last seen."""
        seen = self.read().get(image, {})
        if not isinstance(seen.get("at_ns"), int):
            return "never seen from here"
        day = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seen["at_ns"] // 10**9))
        return f"last seen {day} on {seen.get('where')} as {seen.get('what')}"
