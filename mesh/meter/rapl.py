"""RAPL: what the processor itself counts, through Linux's powercap tree. `powercap` says which zones are added up.

The counters wrap, and nobody says how often: between two looks a counter that shows d more than before has counted d,
or d and a whole range, or two. A look that comes soon enough leaves one answer, since no package can spend more than
`MAX_WATTS`, nor a board more than `MAX_BOARD_WATTS`. One that comes too late (a stopped process, a machine that slept)
leaves several, and then the epoch ends: the serves that were running have no figure, rather than one that is wrong. The
same holds for a counter that fell further than a wrap can explain, and for one whose range cannot be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mesh.errors import MeterError
from mesh.meter.clock import SUSPENDED_NS, boottime_beside
from mesh.meter.finding import Finding
from mesh.meter.observing import STILL_NS, observed_intervals
from mesh.meter.powercap import (
    BOUNDARIES,
    MAX_FILE_BYTES,
    POWERCAP,
    Counted,
    Passed,
    Zone,
    choose,
    fault_of,
    look,
    opened,
)
from mesh.meter.protocol import Domain, Reading

# How fast a counter can go round: several times what any package draws, and what a board with its cards may.
MAX_WATTS = 2_000
MAX_BOARD_WATTS = 20_000
SMALLEST_RANGE_UJ = 2**32  # of a range that cannot be read: 32 bits of one microjoule
OBSERVE_NS = 20 * 10**6  # the counters move about every millisecond
_SLACK_NS = 10**8  # a look may show what was spent a little before the look before it

_ROOT_ONLY = (
    "only root may read it since Linux 5.10 (CVE-2020-8694); give the gateway's group the right: "
    "chgrp GROUP {path} && chmod g+r {path}, in a udev rule for subsystem powercap so that it lasts"
)
_WORDS = {
    "no-powercap": "{path} is not there: the kernel has no powercap, or this is a virtual machine or a container",
    "not-a-folder": "{path} is not a folder, and the processor's counters are found in one",
    "no-zones": "{path} has no zones: most virtual machines and containers hide the processor's counters",
    "no-psys": "this processor has no platform counter; the boundary `package+dram` is the usual one",
    "no-package": "there are zones and none is a package, and parts of a package are not the package",
    "permission-denied": _ROOT_ONLY,
    "no-such-zone": "{path} leads nowhere: /sys is masked here, as in most containers",
    "zone-gone": "{path} was there and is gone: the driver was unloaded",
    "counter-still": "{path} stands still, so it counts nothing",
    "meter-unreadable": "{path} does not hold a number",
}
_PASSED = {
    "inside": "is inside {other}, which counts it",
    "around": "includes the packages; the boundary `psys` counts it instead of them",
    "duplicate": "is {other} again, through another driver",
    "mirror": "shows the counter of {other} again",
    "outside": "is outside the boundary that was chosen",
    "unknown": "is no zone whose place is known, so it is not added to any",
    "unreadable": "cannot be told apart: its name cannot be read",
}


class RaplMeter:
    """The disjoint zones of a powercap tree within one boundary. A tree that is not there, or not readable, is a domain
    whose readings carry the reason. Raises MeterError for a boundary that nobody knows."""

    interval_ns = 100_000_000  # a wrap that cannot be told is half a minute away
    prompt = True  # the kernel keeps the counters, and says them without waiting

    def __init__(
        self,
        root: Path = POWERCAP,
        *,
        boundary: str = BOUNDARIES[0],
        engines: frozenset[str] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        boottime_ns: Callable[[], int] | None = None,
        observe_ns: int = OBSERVE_NS,
    ) -> None:
        if boundary not in BOUNDARIES:
            raise MeterError(f"rapl: boundary is none of {', '.join(BOUNDARIES)}, got {boundary!r}")
        self._root = root
        self._now_ns = monotonic_ns
        self._boot_ns = boottime_ns or boottime_beside(monotonic_ns)
        counted, self._passed, self._missing = _survey(root, boundary)
        self._counters = [_Counter(entry.domain, entry.zone) for entry in counted]
        method = f"rapl@{boundary}"
        # on a clock of its own: `monotonic_ns` may be one that only a test moves
        intervals = observed_intervals([c.raw_or_none for c in self._counters], time.monotonic_ns, observe_ns)
        self._domains = tuple(
            Domain(counter.name, method, interval or max(1, observe_ns), engines, modelled=False)
            for counter, interval in zip(self._counters, intervals, strict=True)
        ) or (Domain("rapl", method, 0, engines, modelled=False),)

    def domains(self) -> Sequence[Domain]:
        return self._domains

    def read(self) -> Sequence[Reading]:
        if self._missing is not None:
            return (Reading("rapl", self._now_ns(), None, self._missing),)
        return [counter.read(self._now_ns(), self._boot_ns()) for counter in self._counters]

    def close(self) -> None:
        for counter in self._counters:
            counter.close()

    def findings(self) -> list[Finding]:
        """What there is, and why not the rest."""
        if self._missing is not None:
            words = _WORDS.get(self._missing, _WORDS["no-zones"]).format(path=self._root)
            found = [Finding("rapl", "rapl", "absent", words, reason=self._missing)]
        else:
            found = [
                self._finding(counter, domain) for counter, domain in zip(self._counters, self._domains, strict=True)
            ]
        return found + [_of_passed(entry) for entry in self._passed]

    def _finding(self, counter: _Counter, domain: Domain) -> Finding:
        reading = counter.read(self._now_ns(), self._boot_ns())
        if reading.uj is None:
            reason = reading.reason or "meter-unreadable"
            words = _WORDS.get(reason, _WORDS["meter-unreadable"]).format(path=counter.zone.energy)
            return Finding("rapl", domain.name, "absent", words, domain.method, reason=reason)
        words = f"{counter.zone.id}, {counter.zone.name}"
        if counter.zone.range_uj is None:
            words += "; its range cannot be read, so a wrap ends the epoch"
        return Finding("rapl", domain.name, "measured", words, domain.method, domain.resolution_ns)


@dataclass(slots=True)
class _Counter:
    """One zone's counter, made to run on across wraps. The file stays open: a look is one system call."""

    name: str
    zone: Zone
    descriptor: int | None = None
    raw_uj: int | None = None  # at the latest good look
    total_uj: int = 0
    at_ns: int = 0
    boot_ns: int = 0
    moved_ns: int | None = None

    def raw(self) -> int:
        """Raises OSError, ValueError."""
        try:
            if self.descriptor is None:
                self.descriptor = opened(self.zone.energy)
            text = os.pread(self.descriptor, MAX_FILE_BYTES, 0)
            if not text.strip().isdigit():
                raise ValueError("not a number")
            return int(text)
        except (OSError, ValueError):
            self.close()  # the zone may come back as another file
            raise

    def raw_or_none(self) -> int | None:
        with suppress(OSError, ValueError):
            return self.raw()
        return None

    def read(self, at_ns: int, boot_ns: int) -> Reading:
        try:
            raw_uj = self.raw()
        except OSError as e:
            return Reading(self.name, at_ns, None, fault_of(e))
        except ValueError:
            return Reading(self.name, at_ns, None, "meter-unreadable")
        if raw_uj != self.raw_uj or self.moved_ns is None:
            self.moved_ns = at_ns
        if at_ns - self.moved_ns >= STILL_NS:
            self.close()  # another file may have come in the place of the one that is open
            return Reading(self.name, at_ns, None, "counter-still")
        return self._take(raw_uj, at_ns, boot_ns)

    def _take(self, raw_uj: int, at_ns: int, boot_ns: int) -> Reading:
        before, slept, reset = self.raw_uj, False, False
        if before is None:
            self.total_uj = raw_uj
        else:
            elapsed_ns = max(at_ns - self.at_ns, boot_ns - self.boot_ns)
            slept = boot_ns - self.boot_ns - (at_ns - self.at_ns) > SUSPENDED_NS
            most_watts = MAX_BOARD_WATTS if self.zone.name == "psys" else MAX_WATTS
            delta = counted_uj(before, raw_uj, self.zone.range_uj, elapsed_ns, most_watts)
            # a processor that slept may begin its counter anew, which looks like a wrap
            reset = delta is None or (slept and raw_uj < before)
            if not reset:
                assert delta is not None
                self.total_uj += delta
        self.raw_uj, self.at_ns, self.boot_ns = raw_uj, at_ns, boot_ns
        return Reading(self.name, at_ns, self.total_uj, reset=reset, gap=slept and not reset)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def counted_uj(
    before: int, after: int, range_uj: int | None, elapsed_ns: int, most_watts: int = MAX_WATTS
) -> int | None:
    """What a counter counted that showed `before` and, `elapsed_ns` later, `after`; None where more than one answer is
    possible, or none."""
    if range_uj is not None and max(before, after) > range_uj:
        range_uj = None  # it is not what it says
    most_uj = (elapsed_ns + _SLACK_NS) * most_watts // 1000
    if after >= before:
        delta = after - before
    elif range_uj is None:
        return None
    else:
        delta = after - before + range_uj
    once_more = delta + (SMALLEST_RANGE_UJ if range_uj is None else range_uj)
    return delta if delta <= most_uj < once_more else None


def _survey(root: Path, boundary: str) -> tuple[list[Counted], list[Passed], str | None]:
    """What is counted, what is not, and the reason where nothing is."""
    try:
        zones = look(root)
    except FileNotFoundError:
        return [], [], "no-powercap"
    except OSError as e:
        return [], [], fault_of(e)
    counted, passed = choose(zones, boundary)
    if counted:
        return counted, passed, None
    unnamed = [zone.fault for zone in zones if zone.name is None]
    if not zones:
        return [], passed, "no-zones"
    if len(unnamed) == len(zones):
        return [], passed, unnamed[0] or "meter-unreadable"
    return [], passed, "no-psys" if boundary == "psys" else "no-package"


def _of_passed(entry: Passed) -> Finding:
    zone = entry.zone
    words = _PASSED[entry.why].format(other=entry.other or "its package")
    if entry.why == "unreadable":
        fault = zone.fault or "meter-unreadable"
        return Finding("rapl", zone.id, "absent", f"{words} ({fault})", reason=fault)
    return Finding("rapl", f"{zone.id} ({zone.name})", "part", words, reason=entry.why)
