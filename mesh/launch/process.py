"""Who holds a lock: a process by its host, boot, id and start time, because ids are used again."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

Life = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True)
class Holder:
    """`boot` is the kernel's boot id, `started` the process's start in clock ticks since boot."""

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def this(cls) -> Self:
        pid = os.getpid()
        return cls(socket.gethostname(), boot_id(), pid, start_of(pid) or 0)

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """From JSON; None for what is no holder."""
        if not isinstance(value, dict):
            return None
        kinds = {"host": str, "boot": str, "pid": int, "started": int}
        if any(not isinstance(value.get(name), kind) for name, kind in kinds.items()):
            return None
        return cls(*(value[name] for name in kinds))

    def to_map(self) -> dict[str, Any]:
        return {"host": self.host, "boot": self.boot, "pid": self.pid, "started": self.started}

    def life(self) -> tuple[Life, str]:
        """Whether it lives, and what was found. Of another host nothing can be said from here."""
        if self.host != socket.gethostname():
            return "unknown", f"process {self.pid} of host {self.host}, which cannot be looked at from here"
        if self.boot != boot_id():
            return "dead", f"process {self.pid} of an earlier boot"
        started = start_of(self.pid)
        if started is None:
            return "dead", f"process {self.pid}, which is gone"
        if started != self.started:
            return "dead", f"process {self.pid}, whose number another program has now"
        return "alive", f"process {self.pid}"


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def start_of(pid: int) -> int | None:
    """The start time of a process, field 22 of its stat; None where it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
