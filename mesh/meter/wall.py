"""Readings of a wall meter as people have them: numbers that were typed, and two kinds of CSV.

    time,watts              busy_cores,watts
    1764500000.5,31.4       0.02,31.4
    2026-11-30T10:00:01Z,33 1.01,45.2

The first line says which. Times are Unix seconds or ISO 8601 with an offset. Lines that are empty or begin with # are
passed over; everything else that is no reading is refused with its line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import NoReturn, TypeVar

from mesh.errors import MeterError
from mesh.meter.calibration import MAX_BUSY_U, MAX_POINTS, MAX_WATTS_U, Point

MAX_CSV_BYTES = 16 * 1024 * 1024
MAX_READINGS = 500_000
_MILLION = 10**6
_NS_PER_S = 10**9
_MAX_TEXT = 40

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class WallReading:
    """Unix nanoseconds and microwatts."""

    at_ns: int
    watts_u: int


def typed_watts(text: str) -> int:
    """Microwatts: the mean of the numbers on one line, apart by spaces. Raises MeterError."""
    parts = text.split()
    if not parts or len(parts) > MAX_POINTS:
        raise MeterError(f"wall meter: expected watts, got {text.strip()[:_MAX_TEXT]!r}")
    readings = [_number(part, "watts", MAX_WATTS_U, "wall meter") for part in parts]
    return sum(readings) // len(readings)


def parse_points(data: bytes) -> list[Point]:
    """`busy_cores,watts`. Raises MeterError, naming the line."""

    def row(cells: Sequence[str], where: str) -> Point:
        return Point(
            _number(cells[0], "busy_cores", MAX_BUSY_U, where, zero=True),
            _number(cells[1], "watts", MAX_WATTS_U, where),
        )

    return _rows(data, ("busy_cores", "watts"), row, MAX_POINTS)


def parse_readings(data: bytes) -> list[WallReading]:
    """`time,watts`, in the order of time. Raises MeterError, naming the line."""

    def row(cells: Sequence[str], where: str) -> WallReading:
        return WallReading(_time(cells[0], where), _number(cells[1], "watts", MAX_WATTS_U, where))

    readings = _rows(data, ("time", "watts"), row, MAX_READINGS)
    for before, after in itertools.pairwise(readings):
        if after.at_ns < before.at_ns:
            raise MeterError("wall meter readings: time goes back; was the clock set?")
    return readings


def watts_within(readings: Sequence[WallReading], from_ns: int, to_ns: int) -> int | None:
    """The mean of the readings in a stretch; None where there are none."""
    within = [reading.watts_u for reading in readings if from_ns <= reading.at_ns <= to_ns]
    return sum(within) // len(within) if within else None


def _rows(data: bytes, header: tuple[str, str], row: Callable[[Sequence[str], str], _Row], most: int) -> list[_Row]:
    if len(data) > MAX_CSV_BYTES:
        raise MeterError(f"wall meter readings: longer than {MAX_CSV_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MeterError("wall meter readings: not valid utf-8") from None
    rows: list[_Row] = []
    headed = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"wall meter readings: line {number}"
        cells = [cell.strip() for cell in line.split(",")]
        if not headed:
            if tuple(cell.lower() for cell in cells) != header:
                raise MeterError(f"{where}: expected the columns {','.join(header)}, got {line.strip()[:_MAX_TEXT]!r}")
            headed = True
            continue
        if len(cells) != len(header):
            raise MeterError(f"{where}: expected {len(header)} columns, got {len(cells)}")
        if len(rows) == most:
            raise MeterError(f"{where}: more than {most} readings")
        rows.append(row(cells, where))
    if not rows:
        raise MeterError("wall meter readings: none")
    return rows


def _number(text: str, what: str, most_u: int, where: str, *, zero: bool = False) -> int:
    """Millionths of a decimal."""

    def refuse() -> NoReturn:
        least = "from 0" if zero else "above 0"
        raise MeterError(
            f"{where}: {what}: expected a number {least} to {most_u // _MILLION}, got {text[:_MAX_TEXT]!r}"
        )

    try:
        # Decimal also takes underscores, infinities, other scripts' digits and exponents that fill the memory
        if len(text) > _MAX_TEXT or not text.isascii() or not set(text) <= set("0123456789."):
            refuse()
        value = round(Decimal(text) * _MILLION)
    except InvalidOperation:
        refuse()
    if not 0 <= value <= most_u or (value == 0 and not zero):
        refuse()
    return value


def _time(text: str, where: str) -> int:
    try:
        if len(text) <= _MAX_TEXT and text.isascii():
            if set(text) <= set("0123456789."):
                return int(Decimal(text) * _NS_PER_S)
            told = datetime.fromisoformat(text)
            if told.tzinfo is not None:
                return int(Decimal(str(told.timestamp())) * _NS_PER_S)
    except (InvalidOperation, ValueError, OverflowError):
        pass
    raise MeterError(f"{where}: time: expected Unix seconds or ISO 8601 with an offset, got {text[:_MAX_TEXT]!r}")
