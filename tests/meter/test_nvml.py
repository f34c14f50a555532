"""The NVML meter: the real pynvml over a driver library that does as it is told."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pynvml
import pytest

from mesh.meter.nvml import RETRY_NS, SLOWEST_NS, NvmlMeter, Wanted, find_cards
from mesh.meter.protocol import Reading
from mesh.meter.visible import Card
from tests.support.nvml import StubHost

S = 10**9
MS = 10**6
AA, BB = "GPU-aa000000-0000", "GPU-bb000000-0000"


class Clock:
    def __init__(self) -> None:
        self.at_ns = 5 * S

    def __call__(self) -> int:
        return self.at_ns


def open_meter(clock: Clock, *, engines: frozenset[str] | None = None, observe_ns: int = 1) -> NvmlMeter:
    """Over every card there is."""
    cards, reason = find_cards()
    assert reason is None
    wanted = [Wanted(str(card.index), card, engines) for card in cards]
    return NvmlMeter(wanted, monotonic_ns=clock, observe_ns=observe_ns)


def test_total_energy_is_counted_in_microjoules(nvml: StubHost) -> None:
    card = nvml.add(AA, energy_mj=81_250_000)
    clock = Clock()
    meter = open_meter(clock, engines=frozenset({"m"}))
    (domain,) = meter.domains()
    assert (domain.name, domain.method, domain.modelled) == (f"gpu:{AA}", "nvml-total", False)
    assert (domain.covers("m"), domain.covers("n")) == (True, False)
    assert meter.read() == [Reading(domain.name, clock.at_ns, 81_250_000_000)]
    card.energy_mj += 3
    assert [reading.uj for reading in meter.read()] == [81_250_003_000]
    meter.close()


def test_resolution_is_what_was_seen(nvml: StubHost) -> None:
    nvml.add(AA, step_mj=1)
    nvml.add(BB)
    meter = open_meter(Clock(), observe_ns=100 * MS)
    moving, still = meter.domains()
    assert 0 < moving.resolution_ns < 100 * MS  # it moves with every look
    assert still.resolution_ns == SLOWEST_NS
    meter.close()


def test_several_cards_are_domains_by_uuid(nvml: StubHost) -> None:
    nvml.add(AA, energy_mj=1)
    nvml.add(BB, energy_mj=2)
    meter = open_meter(Clock())
    assert [(reading.domain, reading.uj) for reading in meter.read()] == [(f"gpu:{AA}", 1000), (f"gpu:{BB}", 2000)]
    meter.close()


def test_cards_that_nobody_wants_are_not_read(nvml: StubHost) -> None:  # EN-07
    for uuid in (AA, BB):
        nvml.add(uuid, energy_mj=7)
    meter = NvmlMeter([Wanted("1", Card(1, BB, "Stub 100"), None)], monotonic_ns=Clock(), observe_ns=1)
    assert [reading.domain for reading in meter.read()] == [f"gpu:{BB}"]
    assert nvml.cards[0].looks == 0
    meter.close()


def test_card_is_followed_by_uuid_when_the_numbers_change(nvml: StubHost) -> None:  # EN-07, 7
    nvml.add(BB, energy_mj=2)
    nvml.add(AA, energy_mj=1)
    meter = NvmlMeter([Wanted("0", Card(0, AA, "Stub 100"), None)], monotonic_ns=Clock(), observe_ns=1)
    assert [reading.uj for reading in meter.read()] == [1000]
    meter.close()


def test_power_is_integrated_where_there_is_no_counter_and_is_marked(nvml: StubHost) -> None:  # EN-05, 1 and a
    card = nvml.add(AA, name="old card", energy_error=pynvml.NVML_ERROR_NOT_SUPPORTED, power_mw=150_000)
    clock = Clock()
    meter = open_meter(clock)
    (domain,) = meter.domains()
    assert (domain.method, domain.modelled) == ("nvml-power@50ms", True)
    (first,) = meter.read()
    for step in range(200):  # ten seconds
        clock.at_ns += 50 * MS
        card.power_mw = 148_000 if step >= 100 else 150_000
        (last,) = meter.read()
        assert not last.gap
    assert (first.uj, last.uj) == (0, 100 * 150_000 * 50 + 100 * 148_000 * 50 + 1_000 * 50)  # a step of 1 W, halved
    (finding,) = meter.findings()
    assert finding.verdict == "modelled"
    assert "no energy counter" in finding.words
    meter.close()


def test_looks_at_power_that_are_far_apart_are_a_gap(nvml: StubHost) -> None:
    nvml.add(AA, energy_error=pynvml.NVML_ERROR_NOT_SUPPORTED, power_mw=1000)
    clock = Clock()
    meter = open_meter(clock)
    meter.read()
    clock.at_ns += 3 * S
    (reading,) = meter.read()
    assert (reading.uj, reading.gap) == (3_000_000, True)
    meter.close()


def test_power_that_failed_in_between_is_not_made_up(nvml: StubHost) -> None:
    card = nvml.add(AA, energy_error=pynvml.NVML_ERROR_NOT_SUPPORTED, power_mw=1000)
    clock = Clock()
    meter = open_meter(clock)
    meter.read()
    clock.at_ns += S
    card.power_error = pynvml.NVML_ERROR_UNKNOWN
    assert [reading.reason for reading in meter.read()] == ["nvml-unknown"]
    clock.at_ns += 2 * RETRY_NS
    card.power_error = 0
    assert [reading.uj for reading in meter.read()] == [0]
    clock.at_ns += S
    assert [reading.uj for reading in meter.read()] == [1_000_000]
    meter.close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"energy_error": pynvml.NVML_ERROR_NOT_SUPPORTED, "power_error": pynvml.NVML_ERROR_NOT_SUPPORTED},
            "nvml-not-supported",
        ),  # EN-05 b
        ({"energy_error": pynvml.NVML_ERROR_NO_PERMISSION, "power_mw": 1000}, "nvml-no-permission"),  # EN-05 c
        ({"mig": 1, "energy_mj": 1000}, "mig-enabled"),
        ({"energy_error": pynvml.NVML_ERROR_GPU_IS_LOST}, "nvml-gpu-is-lost"),
        ({"mig_error": pynvml.NVML_ERROR_UNKNOWN}, "nvml-unknown"),
        ({"energy_error": 4711}, "nvml-unknown"),
    ],
)
def test_card_that_cannot_be_measured_is_a_reason_and_no_other_figure(
    nvml: StubHost, fields: dict[str, int], reason: str
) -> None:
    nvml.add(AA, **fields)
    clock = Clock()
    meter = open_meter(clock)
    for _ in range(2):
        assert [(reading.uj, reading.reason) for reading in meter.read()] == [(None, reason)]
        clock.at_ns += 2 * RETRY_NS
    (finding,) = meter.findings()
    assert (finding.verdict, finding.reason) == ("absent", reason)
    assert finding.words
    meter.close()


def test_card_that_does_not_know_slices_is_measured(nvml: StubHost) -> None:
    nvml.add(AA, mig_error=pynvml.NVML_ERROR_NOT_SUPPORTED, energy_mj=5)
    meter = open_meter(Clock())
    assert [reading.uj for reading in meter.read()] == [5000]
    meter.close()


def test_counter_that_stands_still_is_no_measurement(nvml: StubHost) -> None:  # EN-05
    card = nvml.add(AA, energy_mj=5)
    clock = Clock()
    meter = open_meter(clock)
    meter.read()
    clock.at_ns += 2 * S
    assert [reading.reason for reading in meter.read()] == ["counter-still"]
    card.energy_mj = 6
    assert [reading.uj for reading in meter.read()] == [6000]
    meter.close()


def test_card_lost_after_an_hour_is_a_reason_and_may_come_back(nvml: StubHost) -> None:  # EN-05 e
    card = nvml.add(AA, energy_mj=5)
    clock = Clock()
    meter = open_meter(clock)
    meter.read()
    clock.at_ns += 3600 * S
    card.energy_error = card.handle_error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert [reading.reason for reading in meter.read()] == ["nvml-gpu-is-lost"]
    card.energy_error = 0
    clock.at_ns += 2 * RETRY_NS
    assert [reading.reason for reading in meter.read()] == ["nvml-gpu-is-lost"]  # still no hold of it
    card.handle_error = 0
    card.energy_mj = 9
    assert [reading.reason for reading in meter.read()] == ["nvml-gpu-is-lost"]  # asked for once a second
    clock.at_ns += RETRY_NS
    assert [(reading.uj, reading.reset) for reading in meter.read()] == [(9000, False)]
    meter.close()


def test_reloaded_driver_ends_the_epoch(nvml: StubHost) -> None:
    card = nvml.add(AA, energy_mj=81_250_000)
    clock = Clock()
    meter = open_meter(clock)
    meter.read()
    nvml.reload()
    assert [reading.reason for reading in meter.read()] == ["nvml-uninitialized"]
    card.energy_mj = 90_000_000  # further than before, and it began at 0
    assert [(reading.uj, reading.reset) for reading in meter.read()] == [(90_000_000_000, True)]
    card.energy_mj += 1
    assert [(reading.uj, reading.reset) for reading in meter.read()] == [(90_000_001_000, False)]
    meter.close()


def test_driver_that_stays_away_is_asked_once_a_second(nvml: StubHost) -> None:
    nvml.add(AA, energy_mj=1)
    clock = Clock()
    meter = open_meter(clock)
    nvml.reload()
    nvml.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert [reading.reason for reading in meter.read()] == ["nvml-uninitialized"]
    assert [reading.reason for reading in meter.read()] == ["nvml-driver-not-loaded"]
    nvml.init_error = 0
    nvml.cards[0].energy_mj = 2
    assert [reading.reason for reading in meter.read()] == ["nvml-driver-not-loaded"]
    clock.at_ns += RETRY_NS
    assert [(reading.uj, reading.reset) for reading in meter.read()] == [(2000, True)]
    meter.close()


def test_card_that_is_not_there_is_a_domain_with_a_reason(nvml: StubHost) -> None:
    nvml.add(AA, energy_mj=1)
    meter = NvmlMeter([Wanted("3", None, None, "no-such-card")], monotonic_ns=Clock(), observe_ns=1)
    assert [(reading.domain, reading.reason) for reading in meter.read()] == [("gpu:3", "no-such-card")]
    (finding,) = meter.findings()
    assert finding.words == "there is no such card"
    meter.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"init_error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, "nvml-driver-not-loaded"),
        ({"init_error": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}, "nvml-lib-rm-version-mismatch"),
        ({}, "no-cards"),  # EN-05: initialised, and none there
    ],
)
def test_no_cards_is_a_reason(nvml: StubHost, change: dict[str, Any], reason: str) -> None:
    for field, value in change.items():
        setattr(nvml, field, value)
    assert find_cards() == ([], reason)


def test_card_without_a_handle_is_left_out(nvml: StubHost) -> None:
    nvml.add(AA, handle_error=pynvml.NVML_ERROR_GPU_IS_LOST)
    nvml.add(BB)
    assert find_cards() == ([Card(1, BB, "Stub 100")], None)


def test_machine_without_a_driver_is_a_reason() -> None:  # EN-05 d
    """In a process of its own, which has no stub."""
    code = "from mesh.meter.nvml import find_cards; print(find_cards()[1])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    if done.stdout == "None\n":
        pytest.skip("this machine has a driver")
    assert done.stdout in ("nvml-library-not-found\n", "nvml-driver-not-loaded\n", "no-cards\n")
