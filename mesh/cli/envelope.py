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

    def refusal(self, _: int | None) -> str | None:
        """Why no serve should start now; None where one may."""
        available = memory_bytes("MemAvailable")
        if available is not None and available < self.serve_available_bytes:
            return (
                f"container.runtime_min_available_gib: {self.serve_available_bytes >> 30} GiB, "
                f"here are {available / (1 << 30):.1f} GiB available"
            )
        return None

    def excess(self, pid: int) -> str | None:
        """Why an engine whose process is `pid` has to end, as a container would that takes more than it may."""
        used = held_bytes(pid)
        if used is not None and used > self.memory_bytes:
            return f"container.memory_bytes: {self.memory_bytes}, and it takes {used}"
        return None


def memory_bytes(name: str) -> int | None:
    """A line of the kernel's memory figures, in bytes; None where it has none."""
    return _fields(_MEMINFO).get(name)


def held_bytes(pid: int) -> int | None:
    """What a process and those that descend from it hold in memory; None where nobody can say. What they share counts
    once, by the one that maps most of it: the kernel tells no more without reading every page."""
    from mesh.engine.vllm_keeper import below, processes

    own, shared = 0, 0
    found = [_fields(Path(f"/proc/{each}/status")) for each in (pid, *below([pid], processes()))]
    for figures in found:
        own += figures.get("RssAnon", 0)
        shared = max(shared, figures.get("RssFile", 0) + figures.get("RssShmem", 0))
    return own + shared or None


def _fields(path: Path) -> dict[str, int]:
    """Every line that is a number of kilobytes, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    figures = [(line.partition(":")[0], line.split()) for line in lines if line.endswith(" kB")]
    return {name: int(words[-2]) << 10 for name, words in figures}
