"""The resources that a candidate was measured to need, held against those of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mesh.errors import EngineUnsupported

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Envelope:
    """Bytes of memory: that the engine may take, that must be available when it starts, and while it serves; seconds
    that it has until it is ready."""

    memory_bytes: int
    start_available_bytes: int
    serve_available_bytes: int
    startup_s: int

    def check_start(self, name: str) -> None:
        """Raises EngineUnsupported where it should not be started. What nobody can say refuses nothing."""
        available = memory_bytes("MemAvailable")
        if available is not None and available < self.start_available_bytes:
            raise EngineUnsupported(
                f"{name}: container.min_available_gib: {self.start_available_bytes >> 30} GiB, "
                f"here are {available / (1 << 30):.1f} GiB available"
            )

    def refusal(self, pid: int | None) -> str | None:
        """Why no serve should start now, for an engine whose process is `pid`; None where one may."""
        available = memory_bytes("MemAvailable")
        if available is not None and available < self.serve_available_bytes:
            return (
                f"container.runtime_min_available_gib: {self.serve_available_bytes >> 30} GiB, "
                f"here are {available / (1 << 30):.1f} GiB available"
            )
        used = None if pid is None else resident_bytes(pid)
        if used is not None and used > self.memory_bytes:
            return f"container.memory_bytes: {self.memory_bytes}, and it takes {used}"
        return None


def memory_bytes(name: str) -> int | None:
    """A line of the kernel's memory figures, in bytes; None where it has none."""
    return _field(_MEMINFO, name)


def resident_bytes(pid: int) -> int | None:
    """What a process holds in memory; None where nobody can say."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def _field(path: Path, name: str) -> int | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    return None
