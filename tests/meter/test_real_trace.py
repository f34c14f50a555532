"""What a real card drew, played through the real pynvml, and two serves that share it: every figure worked by hand.

The trace is of a small card whose computation begins: its power as the driver showed it, every 34 to 67 ms; published
with the Kokkos energy dashboard (`power_profile_output_gpu_power.csv`, its first 21 samples). No energy counter is in
it, so the power is integrated, as it is on cards that have none.
"""

from __future__ import annotations

from itertools import pairwise

import pynvml

from mesh.meter.allocation import Allocation
from mesh.meter.nvml import NvmlMeter, Wanted
from mesh.meter.visible import Card
from mesh.schema.energy import EnergySource
from tests.support.nvml import StubHost

FIRST_MW = 6_386
# When, what power, and the microjoules counted since the sample before: the time between the two, times the mean of
# their powers. The counter shows whole microjoules, so that a fraction of one shows in the next step.
TRACE = [
    (34_916_792, 6_386, 222_978),  # 34_916_792 ns x 12_772/2 mW = 222_978.633712 uJ
    (69_095_852, 6_749, 224_471),  # 34_179_060 ns x 13_135/2 mW = 224_470.976550 uJ
    (111_534_996, 6_749, 286_422),  # 42_439_144 ns x 13_498/2 mW = 286_421.782856 uJ
    (146_582_155, 6_749, 236_533),  # 35_047_159 ns x 13_498/2 mW = 236_533.276091 uJ
    (180_293_113, 7_074, 232_993),  # 33_710_958 ns x 13_823/2 mW = 232_993.286217 uJ
    (214_121_735, 7_074, 239_304),  # 33_828_622 ns x 14_148/2 mW = 239_303.672028 uJ
    (248_358_074, 7_074, 242_188),  # 34_236_339 ns x 14_148/2 mW = 242_187.862086 uJ
    (282_458_852, 7_365, 246_191),  # 34_100_778 ns x 14_439/2 mW = 246_190.566771 uJ
    (317_781_102, 7_365, 260_148),  # 35_322_250 ns x 14_730/2 mW = 260_148.371250 uJ
    (352_835_362, 9_281, 291_757),  # 35_054_260 ns x 16_646/2 mW = 291_756.605980 uJ
    (407_509_931, 9_281, 507_434),  # 54_674_569 ns x 18_562/2 mW = 507_434.674889 uJ
    (452_588_050, 9_281, 418_370),  # 45_078_119 ns x 18_562/2 mW = 418_370.022439 uJ
    (494_211_455, 11_124, 424_663),  # 41_623_405 ns x 20_405/2 mW = 424_662.789512 uJ
    (561_325_713, 11_124, 746_579),  # 67_114_258 ns x 22_248/2 mW = 746_579.005992 uJ
    (596_106_239, 14_335, 442_739),  # 34_780_526 ns x 25_459/2 mW = 442_738.705717 uJ
    (631_329_645, 14_335, 504_927),  # 35_223_406 ns x 28_670/2 mW = 504_927.525010 uJ
    (670_950_202, 16_589, 612_613),  # 39_620_557 ns x 30_924/2 mW = 612_613.052334 uJ
    (716_385_955, 16_589, 753_734),  # 45_435_753 ns x 33_178/2 mW = 753_733.706517 uJ
    (751_528_345, 16_589, 582_977),  # 35_142_390 ns x 33_178/2 mW = 582_977.107710 uJ
    (789_767_865, 19_649, 692_862),  # 38_239_520 ns x 36_238/2 mW = 692_861.862880 uJ
]  # fmt: skip

LOW, HIGH = b"\x01" * 16, b"\x02" * 16  # LOW is served from sample 5 to 15, HIGH from sample 10 to 20
BEFORE_UJ = 222_978 + 224_471 + 286_422 + 236_533 + 232_993
ALONE_UJ = 239_304 + 242_188 + 246_191 + 260_148 + 291_757
# halves of the five steps that they share; the odd microjoule of the third and of the fourth and fifth is LOW's
LOW_HALF_UJ = 253_717 + 209_185 + 212_332 + 373_290 + 221_370
HIGH_HALF_UJ = 253_717 + 209_185 + 212_331 + 373_289 + 221_369
AFTER_UJ = 504_927 + 612_613 + 753_734 + 582_977 + 692_862


def test_recorded_card_is_divided_as_worked_by_hand(nvml: StubHost) -> None:
    card = nvml.add("GPU-real", energy_error=pynvml.NVML_ERROR_NOT_SUPPORTED, power_mw=FIRST_MW)
    now_ns = 0
    meter = NvmlMeter([Wanted("0", Card(0, "GPU-real", "real"), None)], monotonic_ns=lambda: now_ns, observe_ns=1)
    (domain,) = meter.domains()
    books = Allocation([domain], lambda: bytes(16))
    counted = [0]
    figures = {}
    books.tick(meter.read())
    for sample, (at_ns, power_mw, _) in enumerate(TRACE, 1):
        now_ns, card.power_mw = at_ns, power_mw
        (reading,) = readings = meter.read()
        assert reading.uj is not None
        counted.append(reading.uj)
        books.tick(readings)
        if sample in (5, 10):
            books.begin(LOW if sample == 5 else HIGH, books.cover("m"), at_ns)
        if sample in (15, 20):
            serve = LOW if sample == 15 else HIGH
            figures[serve] = books.end(serve, at_ns)
    meter.close()

    assert [after - before for before, after in pairwise(counted)] == [uj for _, _, uj in TRACE]
    assert (
        [figures[LOW].uj, figures[HIGH].uj]
        == [ALONE_UJ + LOW_HALF_UJ, HIGH_HALF_UJ + AFTER_UJ]
        == [2_549_482, 4_417_004]
    )
    low = figures[LOW]
    assert (low.basis, low.rule, low.peak_sharers, low.span_ns) == ("modelled", "equal/1", 2, 596_106_239 - 180_293_113)
    assert low.window_uj == 5_022_770 - 1_203_397
    assert low.sources == [
        EnergySource.of(domain="gpu:GPU-real", method="nvml-power@50ms", uj=2_549_482, resolution_ns=100_000_000)
    ]
    for serve in figures:
        books.sealed(serve)
    (row,) = books.totals().domains
    assert (row.idle_uj, row.unattributed_uj, row.open_uj) == (BEFORE_UJ, 0, 0)
    assert row.last_uj - row.first_uj == 8_169_883 == BEFORE_UJ + 2_549_482 + 4_417_004
