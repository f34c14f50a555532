"""A meter log and the meter that plays it back.

The log is text, one JSON object per line, UTF-8, whole numbers only. First the format, then the domains, then the
readings in the order of their time:

    {"v":"mesh-meter-log/1"}
    {"domain":"gpu0","method":"nvml-total","resolution_ns":20000000,"modelled":false}
    {"domain":"cpu","method":"rapl","resolution_ns":1000000,"modelled":false,"engines":["smollm2"]}
    {"at_ns":0,"domain":"gpu0","uj":81250000}
    {"at_ns":0,"domain":"cpu","reason":"permission-denied"}
    {"at_ns":50000000,"domain":"gpu0","uj":84250000,"gap":true}

`engines` are the recipe ids that a domain counts; left out, it counts all. A reading has `uj`, cumulative microjoules,
or a `reason` why there is none. `reset` and `gap`, `true` or left out, stand beside `uj` and mean what they mean in
`Reading`. `at_ns` is any monotonic clock; only differences count. Everything else is refused, with its line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mesh.errors import MeterError
from mesh.meter.protocol import Domain, Reading, is_name, is_reason
from mesh.schema.limits import MAX_SOURCES, MAX_UINT

FORMAT = "mesh-meter-log/1"
MAX_LOG_BYTES = 64 * 1024 * 1024  # about a million readings, all held in memory
MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class MeterLog:
    """A log as written: domains in the order of their lines, readings in the order of time."""

    domains: tuple[Domain, ...]
    readings: tuple[Reading, ...]


def read_log(path: Path) -> MeterLog:
    """Raises MeterError for a file that cannot be read or is not a log, naming the line and the fault."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES + 1)
    except OSError as e:
        raise MeterError(f"meter log {path}: cannot be read: {e.strerror or e}") from None
    return parse_log(data)


def parse_log(data: bytes) -> MeterLog:
    """Raises MeterError for anything that is not a log, naming the line and the fault."""
    if len(data) > MAX_LOG_BYTES:
        raise MeterError(f"meter log: longer than {MAX_LOG_BYTES} bytes")
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    domains: dict[str, Domain] = {}
    readings: list[Reading] = []
    for number, raw in enumerate(lines, start=1):
        line = _Line(number, raw)
        if number == 1:
            line.only({"v"})
            if line.fields.get("v") != FORMAT:
                line.refuse(f"expected the format {FORMAT!r}, got {line.fields.get('v')!r}")
        elif "at_ns" in line.fields:
            reading = line.reading()
            if reading.domain not in domains:
                line.refuse(f"domain {reading.domain!r} is not declared above")
            if readings and reading.at_ns < readings[-1].at_ns:
                line.refuse(f"at_ns goes back from {readings[-1].at_ns} to {reading.at_ns}")
            readings.append(reading)
        else:
            domain = line.domain()
            if readings:
                line.refuse(f"domain {domain.name!r} is declared after the first reading")
            if domain.name in domains:
                line.refuse(f"domain {domain.name!r} is declared twice")
            if len(domains) == MAX_SOURCES:
                line.refuse(f"more than {MAX_SOURCES} domains")
            domains[domain.name] = domain
    if not lines:
        raise MeterError("meter log: empty")
    return MeterLog(tuple(domains.values()), tuple(readings))


def log_lines(domains: Sequence[Domain]) -> list[bytes]:
    """The beginning of a log: the format and the domains."""
    lines: list[dict[str, Any]] = [{"v": FORMAT}]
    for domain in domains:
        fields: dict[str, Any] = {"domain": domain.name, "method": domain.method}
        fields |= {"resolution_ns": domain.resolution_ns, "modelled": domain.modelled}
        if domain.engines is not None:
            fields["engines"] = sorted(domain.engines)
        lines.append(fields)
    return [_line(fields) for fields in lines]


def reading_line(reading: Reading, *, not_before_ns: int = 0) -> bytes:
    """A reading as a log has it. Those of one look may be older than what was written before: `not_before_ns`."""
    fields: dict[str, Any] = {"at_ns": max(reading.at_ns, not_before_ns), "domain": reading.domain}
    if reading.uj is None:
        fields["reason"] = reading.reason if is_reason(reading.reason) else "meter-unreadable"
    else:
        fields["uj"] = reading.uj
        fields |= {mark: True for mark in ("reset", "gap") if getattr(reading, mark)}
    return _line(fields)


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class RecordedMeter:
    """Plays a log back. The first `read` is the log's first instant; later ones give, per domain, the latest reading
    up to then, with its own time moved onto the playback clock. After the end each domain is unreadable, `log-ended`.
    """

    interval_ns = 50_000_000
    prompt = False

    def __init__(self, log: MeterLog, *, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._log = log
        self._now_ns = monotonic_ns
        self._shift_ns: int | None = None  # playback clock minus the log's
        self._next = 0
        self._latest: dict[str, Reading] = {}
        self._marks: dict[str, tuple[bool, bool]] = {}  # reset and gap, met since the domain's last reading given out

    @classmethod
    def from_path(cls, path: Path, *, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> RecordedMeter:
        return cls(read_log(path), monotonic_ns=monotonic_ns)

    def domains(self) -> Sequence[Domain]:
        return self._log.domains

    def read(self) -> Sequence[Reading]:
        now_ns, rows = self._now_ns(), self._log.readings
        if self._shift_ns is None:
            self._shift_ns = now_ns - (rows[0].at_ns if rows else 0)
        log_ns = now_ns - self._shift_ns
        # The last reading is given out once even where no look falls on its very instant.
        ended = self._next == len(rows) and (not rows or log_ns > rows[-1].at_ns)
        while self._next < len(rows) and rows[self._next].at_ns <= log_ns:
            self._pass(rows[self._next])
            self._next += 1
        return [self._given(domain.name, now_ns, ended=ended) for domain in self._log.domains]

    def close(self) -> None:
        """Nothing is held open."""

    def _pass(self, row: Reading) -> None:
        """Move on to a row. Several may pass between two looks: what they mark must not be lost with them."""
        before = self._latest.get(row.domain)
        reset, gap = self._marks.get(row.domain, (False, False))
        if before is not None:
            fell = before.uj is not None and row.uj is not None and row.uj < before.uj
            self._marks[row.domain] = (reset or row.reset or fell, gap or row.gap or row.uj is None)
        self._latest[row.domain] = row

    def _given(self, name: str, now_ns: int, *, ended: bool) -> Reading:
        row = self._latest.get(name)
        if row is None or ended:
            return Reading(name, now_ns, None, "log-ended" if ended else "no-reading")
        at_ns = row.at_ns + (self._shift_ns or 0)
        if row.uj is None:
            return Reading(name, at_ns, None, row.reason)
        reset, gap = self._marks.pop(name, (False, False))
        return Reading(name, at_ns, row.uj, reset=reset, gap=gap)


class _Line:
    """One line of a log, taken apart with its number at hand."""

    def __init__(self, number: int, raw: bytes) -> None:
        self.number = number
        if len(raw) > MAX_LINE_BYTES:
            self.refuse(f"longer than {MAX_LINE_BYTES} bytes")
        try:
            fields = json.loads(
                raw.decode("utf-8"),
                object_pairs_hook=self._unique,
                parse_float=lambda text: self.refuse(f"{text} is not a whole number"),
                parse_constant=lambda text: self.refuse(f"{text} is not a number"),
            )
        except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of thousands of digits, nested without end
            self.refuse("not a JSON object")
        if not isinstance(fields, dict):
            self.refuse("not a JSON object")
        self.fields: dict[str, Any] = fields

    def refuse(self, fault: str) -> NoReturn:
        raise MeterError(f"meter log line {self.number}: {fault}")

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            self.refuse("a field is there twice")
        return fields

    def only(self, allowed: set[str]) -> None:
        for name in self.fields:
            if name not in allowed:
                self.refuse(f"unknown field {name!r}")

    def domain(self) -> Domain:
        self.only({"domain", "method", "resolution_ns", "modelled", "engines"})
        engines = self.fields.get("engines")
        if "engines" in self.fields:
            if not isinstance(engines, list) or not all(map(is_name, engines)):
                self.refuse("engines is not a list of names")
            if len(set(engines)) != len(engines):
                self.refuse("engines names one twice")
        return Domain(
            name=self._name("domain"),
            method=self._name("method"),
            resolution_ns=self._uint("resolution_ns"),
            engines=None if engines is None else frozenset(engines),
            modelled=self._flag("modelled", self.fields.get("modelled")),
        )

    def reading(self) -> Reading:
        if "uj" in self.fields:
            self.only({"at_ns", "domain", "uj", "reset", "gap"})
        else:
            self.only({"at_ns", "domain", "reason"})
            if not is_reason(self.fields.get("reason")):
                self.refuse("neither uj nor a reason of lower-case letters, digits, '.', '_' and '-'")
        return Reading(
            domain=self._name("domain"),
            at_ns=self._uint("at_ns"),
            uj=self._uint("uj") if "uj" in self.fields else None,
            reason=self.fields.get("reason"),
            reset=self._flag("reset", self.fields.get("reset", False)),
            gap=self._flag("gap", self.fields.get("gap", False)),
        )

    def _name(self, field: str) -> str:
        text = self.fields.get(field)
        if not isinstance(text, str) or not is_name(text):
            self.refuse(f"{field} is missing or not a printable name")
        return text

    def _uint(self, field: str) -> int:
        number = self.fields.get(field)
        if type(number) is not int or not 0 <= number <= MAX_UINT:
            self.refuse(f"{field} is missing or not a whole number from 0 to {MAX_UINT}")
        return number

    def _flag(self, field: str, value: object) -> bool:
        if not isinstance(value, bool):
            self.refuse(f"{field} is missing or neither true nor false")
        return value
