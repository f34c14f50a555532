"""What a wall meter showed, as people have it."""

from __future__ import annotations

import pytest

from mesh.errors import MeterError
from mesh.meter.calibration import Point
from mesh.meter.wall import (
    MAX_CSV_BYTES,
    WallReading,
    parse_points,
    parse_readings,
    typed_watts,
    watts_within,
)

S, W = 10**9, 10**6


def test_numbers_on_a_line_are_one_reading() -> None:
    assert typed_watts("31.4\n") == 31_400_000
    assert typed_watts(" 31  32.5 33 ") == 32_166_666


@pytest.mark.parametrize(
    "text", ["", " \n", "31,4", "31 W", "-5", "0", "nan", "inf", "1e3", "1_0", "٣", "1000001", "9" * 41, "."]
)
def test_line_that_is_no_reading_is_refused(text: str) -> None:
    with pytest.raises(MeterError, match=r"^wall meter: (expected watts|watts: expected a number above 0 to 1000000)"):
        typed_watts(text)


def test_points_are_read_whatever_stands_around_them() -> None:
    data = b"\xef\xbb\xbf# a meter of mine\r\n\r\nBusy_Cores, Watts\r\n0,20\r\n# warm now\r\n 1.5 , 31.25 \r\n"
    assert parse_points(data) == [Point(0, 20 * W), Point(1_500_000, 31_250_000)]


def test_readings_have_times_in_seconds_or_with_an_offset() -> None:
    data = b"time,watts\n1796000000.25,20\n2026-11-30T00:53:21Z,21\n2026-11-30T01:53:22.5+01:00,22\n"
    assert parse_readings(data) == [
        WallReading(1_796_000_000 * S + S // 4, 20 * W),
        WallReading(1_796_000_001 * S, 21 * W),
        WallReading(1_796_000_002 * S + S // 2, 22 * W),
    ]


def test_mean_is_of_what_lies_within() -> None:
    readings = [WallReading(at * S, watts * W) for at, watts in ((0, 100), (1, 20), (2, 22), (3, 100))]
    assert watts_within(readings, 1 * S, 2 * S) == 21 * W
    assert watts_within(readings, 4 * S, 9 * S) is None


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "readings: none"),
        (b"time,watts\n", "readings: none"),
        (b"\xff\xfe", "not valid utf-8"),
        (b"watts,time\n1,2\n", "line 1: expected the columns time,watts, got 'watts,time'"),
        (b"1796000000,20\n", "line 1: expected the columns"),
        (b"time,watts\n1796000000\n", "line 2: expected 2 columns, got 1"),
        (b"time,watts\n1796000000,20,5\n", "line 2: expected 2 columns, got 3"),
        (b"time,watts\n2026-11-30T00:53:20,20\n", "line 2: time: expected Unix seconds or ISO 8601 with an offset"),
        (b"time,watts\nyesterday,20\n", "line 2: time: "),
        (b"time,watts\n1.2.3,20\n", "line 2: time: "),
        (b"time,watts\n1796000000,\n", "line 2: watts: expected a number above 0 to 1000000, got ''"),
        (b"time,watts\n1796000000,=cmd()\n", "line 2: watts: "),
        (b"time,watts\n1796000001,20\n1796000000,20\n", "time goes back"),
        (b"x" * (MAX_CSV_BYTES + 1), "longer than 16777216 bytes"),
    ],
)
def test_file_that_is_no_log_is_refused_with_its_line(data: bytes, fault: str) -> None:
    with pytest.raises(MeterError, match=f"^wall meter readings: .*{fault}|^wall meter {fault}"):
        parse_readings(data)


def test_more_points_than_a_fit_takes_are_refused() -> None:
    with pytest.raises(MeterError, match="line 10002: more than 10000 readings"):
        parse_points(b"busy_cores,watts\n" + b"1,2\n" * 10_001)
