"""Watts of a busy core from readings of a wall meter: the line, its band, and what allows neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import MeterError
from mesh.meter.calibration import MAX_FILE_BYTES, Calibration, Fit, Point, fit, read_calibration

W = 10**6
# By hand, in busy cores and watts: the mean is (1.5, 38.5); squared distances from 1.5 add up to 5, products to 60, so
# that a busy core draws 60/5 = 12 W and the idle machine 38.5 - 1.5 x 12 = 20.5 W. The points are off the line by -0.5,
# 1.5, -1.5 and 0.5 W: squares 5, over 2 degrees of freedom 2.5. The slope's variance is 2.5/5 = 0.5, and the band, with
# Student's t of 4.303, 4.303 x sqrt(0.5) = 3.0427 W.
HAND = [Point(0, 20 * W), Point(W, 34 * W), Point(2 * W, 43 * W), Point(3 * W, 57 * W)]


def line(*loads: float, slope: float = 12, idle: float = 20) -> list[Point]:
    return [Point(round(x * W), round((idle + slope * x) * W)) for x in loads]


def test_fit_is_the_one_that_was_computed_by_hand() -> None:
    assert fit(HAND) == Fit(watts_u=12 * W, band_u=3_043_000, idle_u=20_500_000)


def test_fit_of_a_straight_line_has_the_smallest_band_and_not_none() -> None:
    assert fit(line(0, 1, 2, 4)) == Fit(watts_u=12 * W, band_u=1000, idle_u=20 * W)


def test_more_points_of_one_scatter_make_the_band_narrower() -> None:
    assert fit(HAND * 4).band_u < fit(HAND).band_u
    assert fit(HAND * 20).band_u < fit(HAND * 4).band_u


def test_points_in_any_order_give_one_fit() -> None:
    assert fit(HAND[::-1]) == fit(HAND)


@given(
    slope=st.integers(1_000, 10**9),
    idle=st.integers(1, 10**9),
    noise=st.lists(st.integers(-400, 400), min_size=6, max_size=6),
)
def test_true_slope_is_within_the_band_where_the_meter_only_rounds(slope: int, idle: int, noise: list[int]) -> None:
    points = [Point(x * W, max(1, idle + slope * x + off)) for x, off in zip((0, 2, 4, 0, 2, 4), noise, strict=True)]
    try:
        fitted = fit(points)
    except MeterError:
        return  # too little rise for the noise
    assert fitted.band_u >= 1000
    assert abs(fitted.watts_u - slope) <= 500 + 400


@pytest.mark.parametrize(
    ("points", "fault"),
    [
        ([], "0 different loads, at least 3"),
        (line(0, 1), "2 different loads, at least 3"),
        (line(0, 1, 1.01, 1.02), "2 different loads"),
        (line(1, 1, 1), "1 different loads"),
        (line(2, 2.24, 2.26, 2.45), "2 different loads"),
        (line(0, 1, 2, slope=-3), "the watts fall from 20 at 0 busy cores to 17 at 1"),
        ([*line(0, 1, 3), Point(2 * W, 31 * W)], "the watts fall from 32 at 1 busy cores to 31 at 2"),
        (line(0, 1, 2, slope=0), "0 W a busy core, give or take 0.001 W: that says nothing"),
        ([Point(0, 20 * W), Point(W, 20 * W), Point(2 * W, 21 * W)], "that says nothing"),
        ([*line(0, 1, 2), Point(-1, W)], "busy cores must be from 0"),
        ([*line(0, 1, 2), Point(10**12, W)], "busy cores must be from 0"),
        ([*line(0, 1, 2), Point(0, 0)], "watts must be above 0"),
        ([*line(0, 1, 2), Point(0, 10**13)], "watts must be above 0 and at most 1000000"),
        (HAND * 2501, "10004 points, at most 10000"),
    ],
)  # fmt: skip
def test_points_that_say_nothing_are_refused(points: list[Point], fault: str) -> None:
    with pytest.raises(MeterError, match=fault):
        fit(points)


def test_calibration_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = Calibration.of(HAND, processor="a processor – with – dashes", cores=4)
    path = tmp_path / "calibration.json"
    path.write_bytes(made.to_json())
    assert read_calibration(path) == made


def changed(**fields: Any) -> bytes:
    told = json.loads(Calibration.of(HAND, processor="p", cores=4).to_json()) | fields
    return json.dumps({name: value for name, value in told.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"v": 1, "v": 1}', "a field is there twice"),
        (b'{"v": NaN}', "NaN in it"),
        (changed(v=None), "expected the fields"),
        (changed(more=1), "expected the fields"),
        (changed(v="mesh-calibration/2"), "expected 'mesh-calibration/1' by 'wall-fit/1'"),
        (changed(cores="4"), "processor is text and cores a whole number"),
        (changed(points={}), "points: expected a list"),
        (changed(points=[1]), r"points\[0\]: expected busy_u and watts_u"),
        (changed(points=[{"busy_u": 0, "watts_u": 1.5}]), r"points\[0\]: expected whole numbers"),
        (changed(points=[{"busy_u": True, "watts_u": 1}]), r"points\[0\]: expected whole numbers"),
        (changed(points=[]), "0 different loads"),
        (changed(watts_u=5 * W), "its points give 12000000 watts_u, 3043000 band_u and 20500000 idle_u; the file says"),
        (changed(band_u=1), "the file says otherwise"),
        (changed(idle_u=0), "the file says otherwise"),
        (b" " * (MAX_FILE_BYTES + 1), "longer than 1048576 bytes"),
    ],
)
def test_file_that_is_no_calibration_is_refused_by_name(tmp_path: Path, data: bytes, fault: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(data)
    with pytest.raises(MeterError, match=f"^calibration {path}: .*{fault}"):
        read_calibration(path)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match=r"none: cannot be read: No such file"):
        read_calibration(tmp_path / "none")
