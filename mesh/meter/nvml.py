"""NVIDIA cards through NVML, the driver's management library, and the only module that imports pynvml.

A card's total energy counter is read where it has one: millijoules since the driver was loaded, on the board. Where the
library says that there is none, the power that it shows is integrated between looks, and the domain is modelled: power
is sampled, on some cards for a quarter of the time only. Nothing else stands in for a counter: a card that is cut into
MIG slices has no figure, for the card's energy is not the slice's; a counter that may not be read has the library's
own word as its reason.

A card is held by its UUID and never by a number. A driver that was reloaded counts from 0 again: the library is opened
anew, at most once a second, and the first reading after that ends the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pynvml

from mesh.meter.finding import Finding
from mesh.meter.observing import STILL_NS, observed_intervals
from mesh.meter.protocol import Domain, Reading
from mesh.meter.visible import Card

INTERVAL_NS = 50_000_000  # between looks at power, while serves run; stated in the method
LONGEST_STEP_NS = 2 * 10**9  # what went on between two looks at power that are further apart is anybody's guess
SLOWEST_NS = 100_000_000  # between two updates, on the slowest cards
OBSERVE_NS = 500_000_000
RETRY_NS = 10**9

_ERRORS: dict[int, str] = {
    value: "nvml-" + name.removeprefix("NVML_ERROR_").lower().replace("_", "-")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
# The library, and with it every card, has to be opened anew after these.
_CLOSED = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_LACKING = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})

_WORDS = {
    "nvml-library-not-found": "libnvidia-ml.so.1 is not there: no NVIDIA driver, or not in this container",
    "nvml-driver-not-loaded": "the NVIDIA driver is installed and not loaded",
    "nvml-lib-rm-version-mismatch": "the driver was updated and not reloaded: restart the machine, or reload it",
    "nvml-not-supported": "this card has neither an energy counter nor a power reading",
    "nvml-no-permission": "the driver refuses: run as a user who may, or drop the restriction on counters",
    "nvml-gpu-is-lost": "the card fell off the bus",
    "mig-enabled": "the card is cut into MIG slices, and what it counts is no slice's energy",
    "counter-still": "its counter stands still, so it counts nothing",
    "no-such-card": "there is no such card",
    "no-cards": "the driver is here and knows no card",
    "devices-unknown": "which card the engine computes on is not known; say it with gpus",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A card to be metered for `engines` (None: all), `label` what it was asked for as; or one that cannot be, and
    `reason` why."""

    label: str
    card: Card | None
    engines: frozenset[str] | None
    reason: str | None = None


def find_cards() -> tuple[list[Card], str | None]:
    """Every card along the bus, and the reason where there is none. A card that does not tell its UUID is left out: it
    could not be told from another."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        return [], _reason(e)
    cards: list[Card] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                cards.append(Card(index, pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)))
    except pynvml.NVMLError as e:
        return [], _reason(e)
    finally:
        _shutdown()
    return cards, None if cards else "no-cards"


class NvmlMeter:
    """The wanted cards. The way in which each is read is found when it is first opened and stays: it stands in the
    receipts."""

    prompt = False  # a driver may hang

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        interval_ns: int = INTERVAL_NS,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        observe_ns: int = OBSERVE_NS,
    ) -> None:
        self._now_ns = monotonic_ns
        self.interval_ns = 2 * interval_ns
        self._open = False
        self._retry_at_ns = 0
        self._devices = [_Device(one) for one in wanted]
        self._start()
        for device in self._devices:
            device.find_way()
            if device.way == "power":
                self.interval_ns = interval_ns
        totals = [device for device in self._devices if device.way == "total" and device.fault is None]
        intervals = observed_intervals(
            [device.total_or_none for device in totals], time.monotonic_ns, observe_ns, lambda: time.sleep(0.001)
        )
        seen = {device.name: interval for device, interval in zip(totals, intervals, strict=True)}
        self._domains = tuple(
            Domain(
                device.name,
                "nvml-total" if device.way == "total" else f"nvml-power@{interval_ns // 1_000_000}ms",
                seen.get(device.name) or SLOWEST_NS,
                device.wanted.engines,
                modelled=device.way == "power",
            )
            for device in self._devices
        )

    def domains(self) -> Sequence[Domain]:
        return self._domains

    def read(self) -> Sequence[Reading]:
        now_ns = self._now_ns()
        if now_ns >= self._retry_at_ns and any(device.closed for device in self._devices):
            self._retry_at_ns = now_ns + RETRY_NS
            self._restart()
        return [device.read(self._now_ns()) for device in self._devices]

    def close(self) -> None:
        if self._open:
            self._open = False
            _shutdown()

    def findings(self) -> list[Finding]:
        """What is metered, and why not the rest."""
        return [
            device.finding(domain, reading)
            for device, domain, reading in zip(self._devices, self._domains, self.read(), strict=True)
        ]

    def _start(self) -> None:
        if all(device.wanted.card is None for device in self._devices):
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as e:
            for device in self._devices:
                device.closed_by(_reason(e))
            return
        self._open = True
        for device in self._devices:
            device.open()

    def _restart(self) -> None:
        self.close()
        self._start()
        for device in self._devices:
            device.anew = True  # nothing says that its counter went on


class _Device:
    """One card. `fault` is why its latest look failed, `closed` whether the library has to be opened anew for it."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.name = f"gpu:{wanted.label if wanted.card is None else wanted.card.uuid}"
        self.way: Literal["total", "power"] = "total"
        self.fault: str | None = wanted.reason
        self.closed = False
        self.anew = False
        self._handle: Any = None
        self._mj: int | None = None
        self._moved_ns = 0
        self._power: tuple[int, int] | None = None  # of the latest look: nanoseconds and milliwatts
        self._half_pj = 0  # halves of picojoules: the two powers of a step are added and not yet halved
        self._retry_at_ns = 0

    def open(self) -> None:
        """Get hold of the card."""
        if self.wanted.card is None:
            return
        self._handle, self.fault, self.closed = None, None, False
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(self.wanted.card.uuid)
            if _in_slices(handle):
                self.fault = "mig-enabled"
            else:
                self._handle = handle
        except pynvml.NVMLError as e:
            self._failed(e)

    def closed_by(self, reason: str) -> None:
        if self.wanted.card is not None:
            self._handle, self.fault, self.closed = None, reason, True

    def find_way(self) -> None:
        """Try the counter and, where the library says that there is none, the power."""
        if self._handle is None:
            return
        try:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError as e:
            if e.value in _LACKING:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceGetPowerUsage(self._handle)
                    self.way = "power"
        # Whatever else is wrong, the readings say it.

    def total_or_none(self) -> int | None:
        try:
            mj: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            return mj
        except pynvml.NVMLError:
            return None

    def read(self, at_ns: int) -> Reading:
        if self._handle is None and self.wanted.card is not None and not self.closed and at_ns >= self._retry_at_ns:
            self._retry_at_ns = at_ns + RETRY_NS
            self.open()
        if self._handle is None:
            return Reading(self.name, at_ns, None, self.fault or "meter-unreadable")
        try:
            uj, gap = self._total(at_ns) if self.way == "total" else self._integrated(at_ns)
        except pynvml.NVMLError as e:
            self._failed(e)
            self._retry_at_ns = at_ns + RETRY_NS
            return Reading(self.name, at_ns, None, self.fault)
        if uj is None:
            return Reading(self.name, at_ns, None, "counter-still")
        reset, self.anew = self.anew, False
        return Reading(self.name, at_ns, uj, reset=reset, gap=gap and not reset)

    def finding(self, domain: Domain, reading: Reading) -> Finding:
        card = self.wanted.card
        what = "" if card is None else f"card {card.index}, {card.name}"
        if reading.uj is None:
            reason = reading.reason or "meter-unreadable"
            words = _WORDS.get(reason, "the driver refuses")
            return Finding("nvml", self.name, "absent", f"{what}: {words}" if what else words, reason=reason)
        if self.way == "power":
            words = f"{what}; no energy counter, so its power is integrated"
            return Finding("nvml", self.name, "modelled", words, domain.method, domain.resolution_ns)
        return Finding("nvml", self.name, "measured", what, domain.method, domain.resolution_ns)

    def _failed(self, error: pynvml.NVMLError) -> None:
        self.fault = _reason(error)
        self.closed = error.value in _CLOSED
        if error.value not in _LACKING:
            self._handle = None
        self._power = None

    def _total(self, at_ns: int) -> tuple[int | None, bool]:
        mj: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        if mj != self._mj:
            self._mj, self._moved_ns = mj, at_ns
        return (None if at_ns - self._moved_ns >= STILL_NS else mj * 1000), False

    def _integrated(self, at_ns: int) -> tuple[int, bool]:
        """The mean of the two powers, over the time between the two looks."""
        mw: int = pynvml.nvmlDeviceGetPowerUsage(self._handle)
        gap = False
        if self._power is not None:
            before_ns, before_mw = self._power
            self._half_pj += (before_mw + mw) * (at_ns - before_ns)
            gap = at_ns - before_ns > LONGEST_STEP_NS
        self._power = (at_ns, mw)
        return self._half_pj // 2_000_000, gap


def _in_slices(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError as e:
        if e.value in _LACKING:
            return False
        raise


def _reason(error: pynvml.NVMLError) -> str:
    """The library's own word for it."""
    return _ERRORS.get(int(error.value), "nvml-unknown")


def _shutdown() -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
