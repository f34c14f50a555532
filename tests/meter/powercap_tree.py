"""Powercap trees on disk, as the class folder of a kernel shows them."""

from __future__ import annotations

from pathlib import Path

RANGE_UJ = 262_143_328_850


def zone(root: Path, place: str, name: str | None, uj: int | None = 1000, range_uj: int | None = RANGE_UJ) -> Path:
    """A zone; what is None has no file."""
    path = root / place
    path.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", uj), ("max_energy_range_uj", range_uj)):
        if value is not None:
            (path / file).write_text(f"{value}\n")
    return path


def laptop(root: Path) -> None:
    """psys, a package with its parts, and the package again through MMIO."""
    (root / "intel-rapl").mkdir(parents=True)
    (root / "intel-rapl-mmio").mkdir()
    zone(root, "intel-rapl:0", "package-0", 3_930_000)
    zone(root, "intel-rapl:0:0", "core", 840_000)
    zone(root, "intel-rapl:0:1", "uncore", 210_000)
    zone(root, "intel-rapl:1", "psys", 9_610_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 3_780_000)


def two_sockets(root: Path) -> None:
    for socket in (0, 1):
        zone(root, f"intel-rapl:{socket}", f"package-{socket}", 5_000_000 + 100_000_000 * socket)
        zone(root, f"intel-rapl:{socket}:0", "dram", 700_000)


def amd(root: Path) -> None:
    zone(root, "intel-rapl:0", "package-0", 5_000_000)
    zone(root, "intel-rapl:0:0", "core", 90_000)


def threadripper(root: Path) -> None:
    """Two dies, one counter."""
    zone(root, "intel-rapl:0", "package-0-die-0", 68_000_000)
    zone(root, "intel-rapl:1", "package-0-die-1", 68_000_900)
