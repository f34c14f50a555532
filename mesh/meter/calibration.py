"""What a busy core draws, fitted from readings of a wall meter over a ladder of loads: rule `wall-fit/1`.

Each point is a load in busy cores (as the kernel counted them, of the whole machine) and the mean of what the wall
meter showed meanwhile. A straight line through the points by least squares gives the watts of one more busy core, which
is what the CPU-time meter multiplies with, and what the machine draws with none, which no serve is charged. The band is
the half width of the 95 % confidence interval of the slope, by Student's t for the points there are. It is about the
scatter of the points and the straightness of the line; what the wall meter itself is wrong by is not in it.

Whole millionths throughout, sums exact; watts and band are given to a thousandth of a watt, the band rounded up.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from mesh.errors import MeterError
from mesh.meter.cpu_time import watts

RULE = "wall-fit/1"
FORMAT = "mesh-calibration/1"
MIN_LOADS = 3  # different loads: two always lie on a line
APART_U = 250_000  # of a core: loads closer to one another are one, such as a step that was climbed twice
MAX_POINTS = 10_000
MAX_BUSY_U = 100_000 * 10**6
MAX_WATTS_U = 10**6 * 10**6
MAX_FILE_BYTES = 1024 * 1024
_MILLION = 10**6
_MILLIWATT_U = 1000

# Student's t, two-sided 95 %, for 1, 2, 3, ... degrees of freedom, in thousandths. Beyond the table its last is used,
# which makes the band wider and never narrower.
_T95 = (
    12706, 4303, 3182, 2776, 2571, 2447, 2365, 2306, 2262, 2228, 2201, 2179, 2160, 2145, 2131, 2120, 2110, 2101, 2093,
    2086, 2080, 2074, 2069, 2064, 2060, 2056, 2052, 2048, 2045, 2042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """A load and what it drew: millionths of busy cores, microwatts at the wall."""

    busy_u: int
    watts_u: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Microwatts of one more busy core, the half width of their band, and of the machine with none."""

    watts_u: int
    band_u: int
    idle_u: int


def fit(points: Sequence[Point]) -> Fit:
    """Raises MeterError where the points say nothing about the watts of a core, and why."""
    _check(points)
    count = len(points)
    sum_x, sum_y = sum(p.busy_u for p in points), sum(p.watts_u for p in points)
    spread = count * sum(p.busy_u**2 for p in points) - sum_x**2  # n times the sum of squared distances from the mean
    slope = Fraction(count * sum(p.busy_u * p.watts_u for p in points) - sum_x * sum_y, spread)
    level = (sum_y - slope * sum_x) / count
    squares = sum((p.watts_u - level - slope * p.busy_u) ** 2 for p in points)
    freedom = count - 2
    t = Fraction(_T95[min(freedom, len(_T95)) - 1], 1000)
    variance = Fraction(squares * count) / (freedom * spread)
    fitted = Fit(
        watts_u=_rounded(slope * _MILLION),
        band_u=_rounded_up(t**2 * variance * _MILLION**2),
        idle_u=_rounded(level),
    )
    if fitted.band_u >= fitted.watts_u:
        refuse(
            f"{watts(fitted.watts_u)} W a busy core, give or take {watts(fitted.band_u)} W: that says nothing; take "
            "more steps, or longer ones on a quieter machine"
        )
    return fitted


def refuse(fault: str) -> NoReturn:
    raise MeterError(f"calibration: {fault}")


def _check(points: Sequence[Point]) -> None:
    if len(points) > MAX_POINTS:
        refuse(f"{len(points)} points, at most {MAX_POINTS}")
    for point in points:
        if not 0 <= point.busy_u <= MAX_BUSY_U:
            refuse(f"busy cores must be from 0 to {MAX_BUSY_U // _MILLION}, got {watts(point.busy_u)}")
        if not 0 < point.watts_u <= MAX_WATTS_U:
            refuse(f"watts must be above 0 and at most {MAX_WATTS_U // _MILLION}, got {watts(point.watts_u)}")
    loads = _loads(points)
    if len(loads) < MIN_LOADS:
        refuse(
            f"{len(loads)} different loads, at least {MIN_LOADS} are needed, a quarter of a core apart: are there more "
            "steps to climb, and does nothing else keep the machine busy?"
        )
    for below, above in itertools.pairwise(loads):
        if above.watts_u < below.watts_u:
            refuse(
                f"the watts fall from {watts(below.watts_u)} at {watts(below.busy_u)} busy cores to "
                f"{watts(above.watts_u)} at {watts(above.busy_u)}: they must rise with the load; was each step held "
                "until the meter stood still, and is the meter that of this machine alone?"
            )


def _loads(points: Sequence[Point]) -> list[Point]:
    """Points of one load taken together."""
    loads: list[list[Point]] = []
    for point in sorted(points, key=lambda point: point.busy_u):
        if loads and point.busy_u - loads[-1][0].busy_u < APART_U:
            loads[-1].append(point)
        else:
            loads.append([point])
    return [Point(sum(p.busy_u for p in of) // len(of), sum(p.watts_u for p in of) // len(of)) for of in loads]


def _rounded(value: Fraction) -> int:
    return round(value / _MILLIWATT_U) * _MILLIWATT_U


def _rounded_up(square: Fraction) -> int:
    """Of a square root; never 0, which would claim that a line was exact."""
    return (math.isqrt(int(square)) // _MILLIWATT_U + 1) * _MILLIWATT_U


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit with what it was made from and on. `processor` is what the kernel calls it; `cores` are logical."""

    processor: str
    cores: int
    points: tuple[Point, ...]
    fit: Fit

    @classmethod
    def of(cls, points: Sequence[Point], *, processor: str, cores: int) -> Calibration:
        """Raises MeterError where the points allow no fit."""
        return cls(processor, cores, tuple(points), fit(points))

    def to_json(self) -> bytes:
        fields = {
            "v": FORMAT,
            "rule": RULE,
            "processor": self.processor,
            "cores": self.cores,
            "watts_u": self.fit.watts_u,
            "band_u": self.fit.band_u,
            "idle_u": self.fit.idle_u,
            "points": [{"busy_u": point.busy_u, "watts_u": point.watts_u} for point in self.points],
        }
        return json.dumps(fields, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Calibration:
        """The figures must be those that its points give. Raises MeterError."""
        fields = _object(data)
        expected = {"v", "rule", "processor", "cores", "watts_u", "band_u", "idle_u", "points"}
        if fields.keys() != expected:
            refuse(f"expected the fields {', '.join(sorted(expected))}")
        if (fields["v"], fields["rule"]) != (FORMAT, RULE):
            refuse(f"expected {FORMAT!r} by {RULE!r}, got {fields['v']!r} by {fields['rule']!r}")
        if type(fields["processor"]) is not str or type(fields["cores"]) is not int:
            refuse("processor is text and cores a whole number")
        if type(fields["points"]) is not list or len(fields["points"]) > MAX_POINTS:
            refuse(f"points: expected a list of at most {MAX_POINTS}")
        points = [_point(number, point) for number, point in enumerate(fields["points"])]
        made = cls.of(points, processor=fields["processor"], cores=fields["cores"])
        told = Fit(fields["watts_u"], fields["band_u"], fields["idle_u"])
        if told != made.fit:
            refuse(
                f"its points give {made.fit.watts_u} watts_u, {made.fit.band_u} band_u and {made.fit.idle_u} idle_u; "
                "the file says otherwise"
            )
        return made


def read_calibration(path: Path) -> Calibration:
    """Raises MeterError, naming the file, for one that cannot be read or is no calibration."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            refuse(f"longer than {MAX_FILE_BYTES} bytes")
        return Calibration.from_json(data)
    except OSError as e:
        raise MeterError(f"calibration {path}: cannot be read: {e.strerror or e}") from None
    except MeterError as e:
        raise MeterError(f"calibration {path}: {str(e).removeprefix('calibration: ')}") from None


def _object(data: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            refuse("a field is there twice")
        return fields

    try:
        fields = json.loads(data.decode(), object_pairs_hook=once, parse_constant=lambda word: refuse(f"{word} in it"))
    except (ValueError, RecursionError):
        refuse("not JSON")
    if type(fields) is not dict:
        refuse("expected a JSON object")
    return fields


def _point(number: int, point: Any) -> Point:
    if type(point) is not dict or point.keys() != {"busy_u", "watts_u"}:
        refuse(f"points[{number}]: expected busy_u and watts_u")
    if type(point["busy_u"]) is not int or type(point["watts_u"]) is not int:
        refuse(f"points[{number}]: expected whole numbers")
    return Point(point["busy_u"], point["watts_u"])
