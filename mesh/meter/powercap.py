"""The powercap tree of Linux, and which of its zones may be added up.

    intel-rapl:0       package-0        intel-rapl:0:0     core           inside the package
    intel-rapl:1       psys                                uncore         inside the package
    intel-rapl-mmio:0  package-0                           dram           under the package, and not inside it

One boundary is chosen, and the receipt's method names it:

- `package+dram`, the default: every package (cores, caches, memory controller, graphics on the chip), and the memory
  beside each. A dram zone hangs under its package in the tree and counts the memory's own supply, which the package's
  counter leaves out; where the memory sits on the chip there is no such zone. Each is a source of its own, so whoever
  knows better of one processor can leave it out again.
- `package`: the packages alone.
- `psys`: the whole board as the platform counts it, packages and memory inside; never beside any of them.

The same package may appear through two drivers (MSR and MMIO): one is taken, the MSR's where it can be read. The dies
of a package may be counters of their own, or mirrors of the one that the package has (Zen 1 and 2): dies whose counters
stand where the first one stands are not counted. A zone whose name is none of these is listed, never added.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
BOUNDARIES = ("package+dram", "package", "psys")
MAX_FILE_BYTES = 64
MAX_ZONES = 512

_MSR = "intel-rapl"
_ZONE = re.compile(r"(?P<driver>[a-z][a-z0-9-]*)(?P<place>(:\d{1,6})+)\Z")
_DRIVER = re.compile(r"[a-z][a-z0-9-]*\Z")
_PARTS = ("core", "uncore", "dram")
_PACKAGE = re.compile(r"(package-\d{1,6})(-die-\d{1,6})?\Z")
# A mirror is read a moment after what it mirrors, and each side shows what was spent up to a millisecond late.
_MIRROR_SLACK_UJ = 2_000_000

# What stands in the way of a file, as receipts say it.
_FAULTS = {
    errno.EACCES: "permission-denied",
    errno.EPERM: "permission-denied",
    errno.ENOENT: "no-such-zone",
    errno.ENOTDIR: "not-a-folder",
    errno.ENODEV: "zone-gone",
    errno.ENODATA: "zone-gone",
}


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone as it stood when it was looked at. `name` is None where that could not be read; `fault` is why its counter
    could not, `uj` what it showed, `range_uj` where it begins again, None where that cannot be read."""

    path: Path
    driver: str
    place: tuple[int, ...]
    name: str | None
    uj: int | None
    fault: str | None
    range_uj: int | None

    @property
    def id(self) -> str:
        return ":".join((self.driver, *map(str, self.place)))

    @property
    def energy(self) -> Path:
        return self.path / "energy_uj"


@dataclass(frozen=True, slots=True)
class Counted:
    """A zone that is a domain, by its name there."""

    domain: str
    zone: Zone


@dataclass(frozen=True, slots=True)
class Passed:
    """A zone that is no domain. `why`: inside, around, duplicate, mirror, outside, unknown, unreadable."""

    zone: Zone
    why: str
    other: str | None = None  # the domain that counts it already


def fault_of(error: OSError) -> str:
    """The reason that receipts carry."""
    return _FAULTS.get(error.errno or 0, "meter-unreadable")


def look(root: Path) -> list[Zone]:
    """Every zone under `root`, once, in the order of drivers and places, with the MSR's first. The tree may be flat, as
    the class folder is, or nested, as the devices' folder is. Raises OSError where `root` cannot be listed."""
    found: dict[str, Zone] = {}
    folders = [root]
    while folders and len(found) < MAX_ZONES:
        folder = folders.pop(0)
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            if folder is root:
                raise
            continue
        for name in names:
            zone = _ZONE.fullmatch(name)
            if zone is not None and name not in found:
                place = tuple(int(part) for part in zone["place"].split(":")[1:])
                found[name] = _look_at(folder / name, zone["driver"], place)
                folders.append(folder / name)
            elif zone is None and folder is root and _DRIVER.fullmatch(name):
                folders.append(folder / name)
    return sorted(found.values(), key=lambda zone: (zone.driver != _MSR, zone.driver, zone.place))


def _look_at(path: Path, driver: str, place: tuple[int, ...]) -> Zone:
    name, fault = _text(path / "name")
    zone = Zone(path, driver, place, name, None, fault, None)
    if name is None:
        return zone
    uj, fault = number(path / "energy_uj")
    range_uj, _ = number(path / "max_energy_range_uj")
    return replace(zone, uj=uj, fault=fault, range_uj=range_uj or None)


def number(path: Path) -> tuple[int | None, str | None]:
    """A file's whole number, or why there is none."""
    text, fault = _text(path)
    if text is None:
        return None, fault
    return (int(text), None) if text.isascii() and text.isdigit() else (None, "meter-unreadable")


def opened(path: Path) -> int:
    """A descriptor of a file of the tree. Raises OSError. A pipe in its place, which nobody writes to, is not waited
    for: it has nothing to say at once, and no place to read at."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _text(path: Path) -> tuple[str | None, str | None]:
    try:
        with open(opened(path), "rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii").strip(), None
    except OSError as e:
        return None, fault_of(e)
    except UnicodeDecodeError:
        return None, "meter-unreadable"


def choose(
    zones: Sequence[Zone], boundary: str, again: Callable[[Zone], int | None] = lambda zone: number(zone.energy)[0]
) -> tuple[list[Counted], list[Passed]]:
    """Which zones are counted within `boundary`, and why each of the others is not. `again` reads a zone's counter once
    more, to tell a mirror from a die of its own."""
    top: dict[str, Zone] = {}
    rest: list[tuple[Zone, str]] = []
    passed: list[Passed] = []
    for zone in zones:
        if zone.name is None:
            passed.append(Passed(zone, "unreadable"))
        elif len(zone.place) == 1 and (_PACKAGE.fullmatch(zone.name) or zone.name == "psys"):
            _of_two_drivers(top, zone, passed)
        else:
            rest.append((zone, zone.name))
    psys = top.pop("psys", None)
    counted: dict[str, Zone] = {}
    if boundary != "psys":
        _without_mirrors(top, counted, passed, again)
        if psys is not None:
            passed.append(Passed(psys, "around"))
    elif psys is not None:
        counted["psys"] = psys
        passed += [Passed(zone, "inside", "rapl:psys") for zone in top.values()]
    else:
        passed += [Passed(zone, "outside") for zone in top.values()]
    parents = {(zone.driver, zone.place[0]): zone for zone in zones if len(zone.place) == 1}
    for zone, name in rest:
        parent = parents.get((zone.driver, zone.place[0]))
        package = None if parent is None else parent.name
        if name not in _PARTS or len(zone.place) == 1 or package is None:
            passed.append(Passed(zone, "unknown"))
        elif name != "dram" or boundary == "psys":
            around = "psys" if psys is not None and boundary == "psys" else package
            passed.append(Passed(zone, "inside", f"rapl:{around}"))
        elif boundary == "package":
            passed.append(Passed(zone, "outside"))
        elif parent is counted.get(package):
            counted[f"{package}/dram"] = zone
        else:
            passed.append(Passed(zone, "duplicate", f"rapl:{package}/dram"))
    return [Counted(f"rapl:{name}", zone) for name, zone in sorted(counted.items())], passed


def _of_two_drivers(top: dict[str, Zone], zone: Zone, passed: list[Passed]) -> None:
    """One zone of each name, the first that can be read."""
    assert zone.name is not None
    held = top.get(zone.name)
    if held is None:
        top[zone.name] = zone
    elif held.uj is None and zone.uj is not None:
        top[zone.name] = zone
        passed.append(Passed(held, "duplicate", f"rapl:{zone.name}"))
    else:
        passed.append(Passed(zone, "duplicate", f"rapl:{zone.name}"))


def _without_mirrors(
    packages: dict[str, Zone],
    counted: dict[str, Zone],
    passed: list[Passed],
    again: Callable[[Zone], int | None],
) -> None:
    dies: dict[str, list[str]] = {}
    for name in sorted(packages, key=lambda name: packages[name].place):
        zone = packages[name]
        match = _PACKAGE.fullmatch(name)
        assert match is not None
        first = next((die for die in dies.get(match[1], ()) if _mirrors(packages[die], zone, again)), None)
        if first is not None:
            passed.append(Passed(zone, "mirror", f"rapl:{first}"))
            continue
        counted[name] = zone
        dies.setdefault(match[1], []).append(name)


def _mirrors(first: Zone, second: Zone, again: Callable[[Zone], int | None]) -> bool:
    """Whether two zones show one counter: the second stands where the first stood just before and just after. Counters
    that show 0 or nothing say nothing of one another."""
    before, between, after = again(first), again(second), again(first)
    if not before or not between or not after:
        return False
    if between >= before - _MIRROR_SLACK_UJ and between <= after + _MIRROR_SLACK_UJ:
        return True
    # one of them has begun again a moment ago
    span = first.range_uj
    return span is not None and min((between - before) % span, (before - between) % span) <= _MIRROR_SLACK_UJ
