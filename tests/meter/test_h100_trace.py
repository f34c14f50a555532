"""Two H100s at work, their energy counter and their power every 100 ms, as a driver of theirs showed them: what the
counter's log divides between two serves, and what the power alone would have made of it, every figure worked by hand.

The samples are GPU 0 and GPU 1 of `data/t2_telemetry.csv` in atharvanihalani/gpu-telemetry-exploration at 78185b92,
twelve rows of a training run from 1775006198.425 s on: DCGM's fields 155 (power, W) and 156 (energy since the driver
was loaded, mJ), asked for ten times a second. A field shows now and then what it showed before, and makes up for it in
the next row.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pynvml

from mesh.meter.allocation import Allocation
from mesh.meter.nvml import NvmlMeter, Wanted
from mesh.meter.recorded import RecordedMeter, log_lines, reading_line
from mesh.meter.visible import Card
from mesh.schema.energy import EnergySource
from tests.support.nvml import StubHost

LOG = Path(__file__).parent / "h100_pair.jsonl"  # what `mesh meter record` writes of these samples
# When (ms), and for GPU 0 and GPU 1: power (mW), counter (mJ), and the mJ counted since the row before.
SAMPLES = [
    (0, (602_900, 236_749_978_657, 0), (595_000, 230_065_081_064, 0)),
    (101, (616_900, 236_750_034_153, 55_496), (589_600, 230_065_134_892, 53_828)),
    (201, (609_000, 236_750_089_129, 54_976), (585_700, 230_065_190_157, 55_265)),
    (301, (600_200, 236_750_141_044, 51_915), (574_400, 230_065_243_120, 52_963)),
    (401, (590_500, 236_750_192_980, 51_936), (563_100, 230_065_294_626, 51_506)),
    (501, (578_300, 236_750_243_382, 50_402), (550_800, 230_065_397_145, 102_519)),
    (601, (568_500, 236_750_295_423, 52_041), (543_700, 230_065_448_816, 51_671)),
    (701, (550_400, 236_750_348_198, 52_775), (543_700, 230_065_501_930, 53_114)),
    (801, (541_700, 236_750_455_898, 107_700), (534_600, 230_065_554_516, 52_586)),
    (901, (532_200, 236_750_509_373, 53_475), (522_400, 230_065_606_819, 52_303)),
    (1001, (525_900, 236_750_561_332, 51_959), (522_400, 230_065_657_979, 51_160)),
    (1101, (526_500, 236_750_616_714, 55_382), (519_400, 230_065_710_802, 52_823)),
]
MS, MJ = 1_000_000, 1_000  # in nanoseconds, in microjoules

# LARGE computes on both cards, rows 2 to 8; SMALL on GPU 1 alone, rows 4 to 10.
LARGE, SMALL = b"\x01" * 16, b"\x02" * 16
CARD_0_MJ = 51_915 + 51_936 + 50_402 + 52_041 + 52_775 + 107_700  # 366_769, LARGE alone
BOTH_MJ = 102_519 + 51_671 + 53_114 + 52_586  # 259_890 on GPU 1 while both serve, 129_945 each
LARGE_MJ = CARD_0_MJ + (52_963 + 51_506) + BOTH_MJ // 2
SMALL_MJ = BOTH_MJ // 2 + (52_303 + 51_160)
IDLE_0_MJ = 55_496 + 54_976 + 53_475 + 51_959 + 55_382
IDLE_1_MJ = 53_828 + 55_265 + 52_823

# (power before + power now) x milliseconds / 2, in microjoules
POWER_0_UJ = [61_599_900, 61_295_000, 60_460_000, 59_535_000, 58_440_000, 57_340_000]
POWER_0_UJ += [55_945_000, 54_605_000, 53_695_000, 52_905_000, 52_620_000]
POWER_1_UJ = [59_822_300, 58_765_000, 58_005_000, 56_875_000, 55_695_000, 54_725_000]
POWER_1_UJ += [54_370_000, 53_915_000, 52_850_000, 52_240_000, 52_090_000]


class Clock:
    at_ns = 0

    def __call__(self) -> int:
        return self.at_ns


def pair(nvml: StubHost, clock: Clock, energy_error: int = 0) -> NvmlMeter:
    """The two cards before the first row."""
    wanted = []
    for index, engines in enumerate([{"large"}, {"large", "small"}]):
        uuid = f"GPU-h100-{index}"
        nvml.add(uuid, energy_error=energy_error)
        wanted.append(Wanted(str(index), Card(index, uuid, "H100"), frozenset(engines)))
    show(nvml, 0)
    return NvmlMeter(wanted, monotonic_ns=clock, observe_ns=1)


def show(nvml: StubHost, row: int) -> None:
    for card, (power_mw, energy_mj, _) in zip(nvml.cards, SAMPLES[row][1:], strict=False):
        card.power_mw, card.energy_mj = power_mw, energy_mj


def test_counters_of_two_cards_are_recorded_as_the_log_has_them(nvml: StubHost) -> None:
    clock = Clock()
    meter = pair(nvml, clock)
    lines = log_lines(meter.domains())
    for row, (at_ms, *_) in enumerate(SAMPLES):
        clock.at_ns = at_ms * MS
        show(nvml, row)
        lines += [reading_line(reading) for reading in meter.read()]
    meter.close()
    assert b"".join(lines) == LOG.read_bytes()


def test_log_of_two_cards_is_divided_as_worked_by_hand() -> None:
    clock = Clock()
    meter = RecordedMeter.from_path(LOG, monotonic_ns=clock)
    books = Allocation(meter.domains(), lambda: bytes(16))
    counted: list[list[int]] = [[], []]
    figures = {}
    for row, (at_ms, *_) in enumerate(SAMPLES):
        clock.at_ns = at_ms * MS
        readings = meter.read()
        for column, reading in zip(counted, readings, strict=True):
            assert reading.uj is not None
            column.append(reading.uj)
        books.tick(readings)
        if row in (2, 4):
            serve, engine = (LARGE, "large") if row == 2 else (SMALL, "small")
            books.begin(serve, books.cover(engine), clock.at_ns)
        if row in (8, 10):
            serve = LARGE if row == 8 else SMALL
            figures[serve] = books.end(serve, clock.at_ns)

    for card, column in enumerate(counted, 1):
        steps = [(now - before) // MJ for before, now in pairwise(column)]
        assert steps == [sample[card][2] for sample in SAMPLES[1:]]
    large, small = figures[LARGE], figures[SMALL]
    assert (large.uj, small.uj) == (LARGE_MJ * MJ, SMALL_MJ * MJ) == (601_183_000, 233_408_000)
    for figure in (large, small):
        assert (figure.basis, figure.rule, figure.peak_sharers) == ("allocated", "equal/1", 2)
        assert (figure.span_ns, figure.covered_ns) == (600 * MS, None)
    assert (large.window_uj, small.window_uj) == (731_128_000, 363_353_000)
    assert large.sources == [
        EnergySource.of(domain=f"gpu:GPU-h100-{card}", method="nvml-total", uj=uj, resolution_ns=100 * MS)
        for card, uj in enumerate([366_769_000, 234_414_000])
    ]
    for serve in figures:
        books.sealed(serve)
    zero, one = books.totals().domains
    assert (zero.idle_uj, one.idle_uj) == (IDLE_0_MJ * MJ, IDLE_1_MJ * MJ) == (271_288_000, 161_916_000)
    assert (zero.unattributed_uj, zero.open_uj, one.unattributed_uj, one.open_uj) == (0, 0, 0, 0)
    assert zero.last_uj - zero.first_uj == 638_057_000 == (IDLE_0_MJ + CARD_0_MJ) * MJ
    assert one.last_uj - one.first_uj == 629_738_000 == IDLE_1_MJ * MJ + 234_414_000 + SMALL_MJ * MJ


def test_power_of_two_cards_comes_near_what_their_counters_say(nvml: StubHost) -> None:
    clock = Clock()
    meter = pair(nvml, clock, energy_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert {domain.method for domain in meter.domains()} == {"nvml-power@50ms"}
    counted: list[list[int]] = [[], []]
    for row, (at_ms, *_) in enumerate(SAMPLES):
        clock.at_ns = at_ms * MS
        show(nvml, row)
        for column, reading in zip(counted, meter.read(), strict=True):
            assert reading.uj is not None
            column.append(reading.uj)
    meter.close()
    for column, steps in zip(counted, [POWER_0_UJ, POWER_1_UJ], strict=True):
        assert [now - before for before, now in pairwise(column)] == steps
    # 1.5 % and 3.2 % below the counters, less than what one row counts. This power is a mean over the second before.
    assert [column[-1] - column[0] for column in counted] == [638_057_000 - 9_617_100, 629_738_000 - 20_385_700]
