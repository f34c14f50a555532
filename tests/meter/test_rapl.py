"""The RAPL meter on trees on disk; the clocks are the test's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.errors import MeterError
from mesh.meter.observing import observed_intervals
from mesh.meter.protocol import Reading
from mesh.meter.rapl import MAX_BOARD_WATTS, MAX_WATTS, RaplMeter, counted_uj
from tests.meter.powercap_tree import RANGE_UJ, laptop, two_sockets, zone

S = 10**9
MS = 10**6


@dataclass
class Host:
    """One package whose counter and clocks are turned by hand."""

    root: Path
    range_uj: int | None = RANGE_UJ
    uj: int = 0
    now_ns: int = 5 * S
    slept_ns: int = 0

    def __post_init__(self) -> None:
        zone(self.root, "intel-rapl:0", "package-0", self.uj, self.range_uj)
        self.meter = RaplMeter(
            self.root, monotonic_ns=lambda: self.now_ns, boottime_ns=lambda: self.now_ns + self.slept_ns, observe_ns=1
        )

    def after(self, elapsed_ns: int, uj: int) -> Reading:
        """What the meter reads after that time, and that much more spent by the processor."""
        self.now_ns += elapsed_ns
        self.uj += uj
        return self.shows(self.uj if self.range_uj is None else self.uj % self.range_uj)

    def shows(self, raw: int) -> Reading:
        (self.root / "intel-rapl:0" / "energy_uj").write_text(f"{raw}\n")
        (reading,) = self.meter.read()
        return reading


def test_one_wrap_is_counted_on(tmp_path: Path) -> None:  # EN-01 a
    host = Host(tmp_path)
    host.uj = 262_143_000_000
    first = host.after(0, 0)
    second = host.after(S, 338_850)
    assert (first.uj, second.uj) == (262_143_000_000, 262_143_000_000 + 338_850)
    assert (tmp_path / "intel-rapl:0" / "energy_uj").read_text() == "10000\n"
    assert not second.reset
    host.meter.close()


def test_an_hour_at_300_watts_is_exact_for_a_reader_that_comes_every_second(tmp_path: Path) -> None:  # EN-01
    host = Host(tmp_path)
    first = host.after(0, 0)
    with (tmp_path / "intel-rapl:0" / "energy_uj").open("r+b", buffering=0) as file:
        for second in range(1, 3601):
            host.now_ns += S
            os.pwrite(file.fileno(), b"%020d\n" % (second * 300_000_000 % RANGE_UJ), 0)
            (last,) = host.meter.read()
            assert not last.reset
            assert not last.gap
    assert first.uj == 0
    assert last.uj == 1_080_000_000_000  # over four wraps
    host.meter.close()


@pytest.mark.parametrize("raw", [17_000_000_000, 100_000_000_000])  # EN-01 b, c: below the last look, and above
def test_reader_that_comes_too_late_ends_the_epoch(tmp_path: Path, raw: int) -> None:
    host = Host(tmp_path)
    first = host.shows(50_000_000_000)
    host.now_ns += 3600 * S
    late = host.shows(raw)
    assert late.reset
    assert late.uj == first.uj  # what nobody counted is in no figure
    host.now_ns += S
    after = host.shows(raw + 7)
    assert (after.uj, after.reset) == (50_000_000_007, False)
    host.meter.close()


def test_paused_reader_still_counts_where_no_whole_round_fits(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.after(0, 0)
    host.now_ns += 60 * S
    assert host.shows(18_000_000_000) == Reading("rapl:package-0", host.now_ns, 18_000_000_000)
    host.meter.close()


def test_packages_wrap_each_at_its_own_range(tmp_path: Path) -> None:  # EN-01 d
    now = [S]
    for socket, span in ((0, 262_143_328_850), (1, 65_532_610_987)):
        zone(tmp_path, f"intel-rapl:{socket}", f"package-{socket}", span - 1000, span)
    meter = RaplMeter(tmp_path, monotonic_ns=lambda: now[0], boottime_ns=lambda: now[0], observe_ns=1)
    before = [reading.uj for reading in meter.read()]
    now[0] += S
    for socket in (0, 1):
        (tmp_path / f"intel-rapl:{socket}" / "energy_uj").write_text("500\n")
    after = meter.read()
    assert [reading.uj for reading in after] == [1500 + (uj or 0) for uj in before]
    assert not any(reading.reset for reading in after)
    meter.close()


@pytest.mark.parametrize(
    ("before", "after", "span", "elapsed_ns", "counted"),
    [
        (10, 30, RANGE_UJ, S, 20),
        (10, 10, RANGE_UJ, S, 0),
        (262_143_000_000, 10_000, 262_143_328_850, S, 338_850),
        (200_000_000_000, 5, RANGE_UJ, 50 * MS, None),  # no package spends 62 kJ in 50 ms: it began anew
        (5, 200_000_000_000, RANGE_UJ, 50 * MS, None),
        (10, 30, None, S, 20),
        (30, 10, None, S, None),  # a wrap of unknown range
        (10, 30, None, 3 * S, None),  # 32 bits of one microjoule are round in 2.1 s at most
        (10, RANGE_UJ + 1, RANGE_UJ, S, None),  # above what the range file says
        (10, 30, RANGE_UJ, 130 * S, 20),
        (10, 30, RANGE_UJ, 132 * S, None),
    ],
)
def test_difference_is_told_only_where_one_answer_is_left(
    before: int, after: int, span: int | None, elapsed_ns: int, counted: int | None
) -> None:
    assert counted_uj(before, after, span, elapsed_ns) == counted


def test_board_may_spend_more_than_a_package() -> None:
    assert counted_uj(0, 5_000_000_000, RANGE_UJ, S) is None
    assert counted_uj(0, 5_000_000_000, RANGE_UJ, S, MAX_BOARD_WATTS) == 5_000_000_000


def test_fastest_round_is_longer_than_the_interval_between_two_looks() -> None:
    """65 kJ is the smallest range in the field: at the most that a package can draw it takes half a minute."""
    assert 65_532_610_987 // MAX_WATTS * 1000 > 30 * S


def test_unreadable_range_is_no_fault_until_the_counter_falls(tmp_path: Path) -> None:
    host = Host(tmp_path, range_uj=None)
    host.after(0, 1_000_000)
    assert host.after(S, 500).uj == 1_000_500
    host.now_ns += S
    assert host.shows(3).reset
    host.now_ns += S
    assert not host.shows(4).reset
    (finding,) = host.meter.findings()
    assert "a wrap ends the epoch" in finding.words
    host.meter.close()


def test_counter_that_stands_still_is_no_measurement(tmp_path: Path) -> None:  # EN-03 e
    host = Host(tmp_path)
    assert host.after(0, 1000).uj == 1000
    assert host.after(S, 0).uj == 1000
    still = host.after(S, 0)
    assert (still.uj, still.reason) == (None, "counter-still")
    assert host.after(S, 7).uj == 1007
    host.meter.close()


def test_file_that_took_the_place_of_one_that_stands_is_found(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.after(0, 1000)
    path = tmp_path / "intel-rapl:0" / "energy_uj"
    path.rename(tmp_path / "gone")  # the meter holds it open
    path.write_text("1500\n")
    host.now_ns += 2 * S
    assert [reading.reason for reading in host.meter.read()] == ["counter-still"]
    host.now_ns += S
    assert [reading.uj for reading in host.meter.read()] == [1500]
    host.meter.close()


def test_suspension_is_a_gap_and_a_counter_that_fell_in_it_is_a_reset(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.after(0, 1_000_000)
    host.slept_ns += 30 * S
    woken = host.after(S, 200)
    assert (woken.uj, woken.gap, woken.reset) == (1_000_200, True, False)
    host.slept_ns += 30 * S
    host.now_ns += S
    anew = host.shows(5)
    assert (anew.reset, anew.gap) == (True, False)
    assert not host.after(S, 0).gap
    host.meter.close()


def test_ten_minutes_asleep_are_as_ambiguous_as_ten_minutes_awake(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.after(0, 1_000_000)
    host.slept_ns += 600 * S
    assert host.after(S, 200).reset
    host.meter.close()


def no_meter(root: Path) -> tuple[str | None, str]:
    """The reason in the one reading, and the words of the probe."""
    meter = RaplMeter(root, observe_ns=1)
    (reading,) = meter.read()
    (domain,) = meter.domains()
    assert (reading.uj, reading.domain) == (None, domain.name)
    finding = meter.findings()[0]
    assert (finding.verdict, finding.reason) == ("absent", reading.reason)
    meter.close()
    return reading.reason, finding.words


def test_missing_tree_is_a_reason(tmp_path: Path) -> None:  # EN-03 c
    reason, words = no_meter(tmp_path / "powercap")
    assert reason == "no-powercap"
    assert str(tmp_path / "powercap") in words


def test_file_in_the_place_of_a_tree_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "powercap").write_text("12345\n")
    reason, words = no_meter(tmp_path / "powercap")
    assert reason == "not-a-folder"
    assert "not a folder" in words


@pytest.mark.parametrize("drivers", [(), ("intel-rapl",)])
def test_empty_tree_is_a_reason(tmp_path: Path, drivers: tuple[str, ...]) -> None:  # EN-03 b, f
    for driver in drivers:
        (tmp_path / driver).mkdir()
    assert no_meter(tmp_path)[0] == "no-zones"


def test_tree_of_dangling_links_is_a_reason(tmp_path: Path) -> None:  # EN-03 d
    for place in ("intel-rapl:0", "intel-rapl:0:0"):
        (tmp_path / place).symlink_to(tmp_path / "masked" / place)
    reason, words = no_meter(tmp_path)
    assert reason == "no-such-zone"
    assert "masked" in words


def test_tree_without_a_package_is_a_reason(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "psys")
    assert no_meter(tmp_path)[0] == "no-package"


def test_boundary_that_the_tree_lacks_is_a_reason_and_not_another_boundary(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    meter = RaplMeter(tmp_path, boundary="psys", observe_ns=1)
    assert [reading.reason for reading in meter.read()] == ["no-psys"]
    meter.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_permission_denied_is_a_reason_and_says_what_to_do(tmp_path: Path) -> None:  # EN-03 a
    path = zone(tmp_path, "intel-rapl:0", "package-0") / "energy_uj"
    path.chmod(0)
    reason, words = no_meter(tmp_path)
    assert reason == "permission-denied"
    assert f"chmod g+r {path}" in words


def test_permission_denied_is_a_reason_also_for_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says to others, said to whoever runs this."""
    zone(tmp_path, "intel-rapl:0", "package-0", None)
    real = os.open

    def refuse(path: object, *args: int, **options: int) -> int:
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    reason, words = no_meter(tmp_path)
    assert reason == "permission-denied"
    assert "chmod g+r" in words


def test_counter_that_holds_no_number_is_a_reason(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 5) / "energy_uj"
    meter = RaplMeter(tmp_path, observe_ns=1)
    for text in ("", "junk\n", "-5\n", "1 2\n"):
        path.write_text(text)
        assert [reading.reason for reading in meter.read()] == ["meter-unreadable"]
    path.write_text("9\n")
    assert [reading.uj for reading in meter.read()] == [9]
    meter.close()


def test_zone_that_goes_away_is_a_reason_and_may_come_back(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.after(0, 100)
    path = tmp_path / "intel-rapl:0" / "energy_uj"
    host.meter.close()  # as after a read that failed: the next one opens the file anew
    path.unlink()
    assert [reading.reason for reading in host.meter.read()] == ["no-such-zone"]
    path.write_text("150\n")
    host.now_ns += S
    assert [reading.uj for reading in host.meter.read()] == [150]
    host.meter.close()


def test_pipe_in_the_place_of_a_counter_is_a_reason_and_is_not_waited_for(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0")
    meter = RaplMeter(tmp_path, observe_ns=1)
    assert meter.read()[0].reason is None
    (path / "energy_uj").unlink()
    os.mkfifo(path / "energy_uj")
    meter.read()  # of the file that was open
    meter.close()
    assert [reading.reason for reading in meter.read()] == ["meter-unreadable"]
    meter.close()
    assert no_meter(tmp_path)[0] == "meter-unreadable"
    for file in ("energy_uj", "name"):
        (path / file).unlink()
    os.mkfifo(path / "name")
    os.mkfifo(path / "energy_uj")
    assert no_meter(tmp_path)[0] == "no-package"


def test_domains_name_their_boundary_and_their_engines(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    meter = RaplMeter(tmp_path, engines=frozenset({"m"}), observe_ns=1)
    assert [(d.name, d.method, d.modelled, d.covers("m"), d.covers("n")) for d in meter.domains()] == [
        (name, "rapl@package+dram", False, True, False)
        for name in ("rapl:package-0", "rapl:package-0/dram", "rapl:package-1", "rapl:package-1/dram")
    ]
    meter.close()


def test_boundary_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="boundary"):
        RaplMeter(tmp_path, boundary="core")


def test_findings_tell_of_every_zone(tmp_path: Path) -> None:
    laptop(tmp_path)
    meter = RaplMeter(tmp_path, observe_ns=1)
    found = {finding.name: (finding.verdict, finding.reason) for finding in meter.findings()}
    assert found == {
        "rapl:package-0": ("measured", None),
        "intel-rapl:0:0 (core)": ("part", "inside"),
        "intel-rapl:0:1 (uncore)": ("part", "inside"),
        "intel-rapl:1 (psys)": ("part", "around"),
        "intel-rapl-mmio:0 (package-0)": ("part", "duplicate"),
    }
    meter.close()


def test_interval_is_the_one_that_was_seen() -> None:
    now, looks = [0], [0]

    def look() -> int:
        now[0] += 100
        looks[0] += 1
        return now[0] // 1000  # moves every 1000

    assert observed_intervals([look], lambda: now[0], 10**6) == [1000]
    assert looks[0] < 120  # enough was seen


def test_interval_of_a_counter_that_stands_or_fails_is_unknown() -> None:
    now = [0]

    def tick() -> int:
        now[0] += 10
        return now[0]

    assert observed_intervals([lambda: 7, lambda: None], tick, 1000) == [None, None]
