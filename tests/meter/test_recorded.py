"""Meter logs: the strict reader, and playback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.errors import MeterError
from mesh.meter import recorded
from mesh.meter.protocol import Domain, Reading
from mesh.meter.recorded import FORMAT, MeterLog, RecordedMeter, parse_log, read_log
from tests.support.examples import examples

HEAD: dict[str, Any] = {"v": FORMAT}
GPU: dict[str, Any] = {"domain": "gpu0", "method": "nvml-total", "resolution_ns": 20_000_000, "modelled": False}


def log(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def row(at_ns: int, uj: int | None, domain: str = "gpu0", **more: object) -> dict[str, Any]:
    return {"at_ns": at_ns, "domain": domain, **({} if uj is None else {"uj": uj}), **more}


class Clock:
    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def __call__(self) -> int:
        return self.at_ns


def test_log_of_the_module_docstring_is_a_log() -> None:
    assert recorded.__doc__ is not None
    text = "\n".join(line.strip() for line in recorded.__doc__.splitlines() if line.startswith("    {"))
    parsed = parse_log(text.encode())
    assert parsed.domains == (
        Domain("gpu0", "nvml-total", 20_000_000, None, modelled=False),
        Domain("cpu", "rapl", 1_000_000, frozenset({"smollm2"}), modelled=False),
    )
    assert parsed.readings == (
        Reading("gpu0", 0, 81_250_000),
        Reading("cpu", 0, None, "permission-denied"),
        Reading("gpu0", 50_000_000, 84_250_000, gap=True),
    )


def test_log_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    path.write_bytes(log(HEAD, GPU, row(0, 1)))
    assert read_log(path).readings == (Reading("gpu0", 0, 1),)
    with pytest.raises(MeterError, match=r"absent\.jsonl: cannot be read: No such file"):
        read_log(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "meter log: empty"),
        (b"\n", "line 1: not a JSON object"),
        (b"[]", "line 1: not a JSON object"),
        (b'{"v":"mesh-meter-log/2"}', "line 1: expected the format 'mesh-meter-log/1', got 'mesh-meter-log/2'"),
        (log(GPU), "line 1: unknown field 'domain'"),
        (log(HEAD | {"by": "me"}), "line 1: unknown field 'by'"),
        (log(HEAD, GPU) + b"\n" + log(row(0, 1)), "line 3: not a JSON object"),
        (log(HEAD, GPU) + b"{\xff}\n", "line 3: not a JSON object"),
        (log(HEAD, GPU) + b"[" * 60_000, "line 3: not a JSON object"),
        (log(HEAD, GPU) + b'{"at_ns":' + b"9" * 5000 + b"}", "line 3: not a JSON object"),
        (log(HEAD, GPU) + b" " * 70_000, "line 3: longer than 65536 bytes"),
        (log(HEAD, GPU) + b'{"at_ns":0,"domain":"gpu0","uj":1.0}', "line 3: 1.0 is not a whole number"),
        (log(HEAD, GPU) + b'{"at_ns":0,"domain":"gpu0","uj":1e3}', "line 3: 1e3 is not a whole number"),
        (log(HEAD, GPU) + b'{"at_ns":0,"domain":"gpu0","uj":NaN}', "line 3: NaN is not a number"),
        (log(HEAD, GPU) + b'{"at_ns":0,"domain":"gpu0","uj":1,"uj":2}', "line 3: a field is there twice"),
        (log(HEAD, GPU, row(0, -1)), "line 3: uj is missing or not a whole number from 0"),
        (log(HEAD, GPU, row(0, 2**63)), "line 3: uj is missing or not a whole number from 0"),
        (log(HEAD, GPU, row(0, True)), "line 3: uj is missing or not a whole number from 0"),
        (log(HEAD, GPU, row(-5, 1)), "line 3: at_ns is missing or not a whole number from 0"),
        (log(HEAD, GPU, row(0, None)), "line 3: neither uj nor a reason"),
        (log(HEAD, GPU, row(0, None, reason="No Permission")), "line 3: neither uj nor a reason"),
        (log(HEAD, GPU, row(0, 1, reason="why")), "line 3: unknown field 'reason'"),
        (log(HEAD, GPU, row(0, None, reason="lost", gap=True)), "line 3: unknown field 'gap'"),
        (log(HEAD, GPU, row(0, 1, reset=1)), "line 3: reset is missing or neither true nor false"),
        (log(HEAD, GPU, row(0, 1, watts=3)), "line 3: unknown field 'watts'"),
        (log(HEAD, GPU, row(0, 1, "gpu1")), "line 3: domain 'gpu1' is not declared above"),
        (log(HEAD, GPU, row(5, 1), row(4, 2)), "line 4: at_ns goes back from 5 to 4"),
        (log(HEAD, GPU, GPU), "line 3: domain 'gpu0' is declared twice"),
        (log(HEAD, GPU, row(0, 1), GPU | {"domain": "b"}), "line 4: domain 'b' is declared after the first reading"),
        (log(HEAD, GPU | {"domain": "\u001b[31m"}), "line 2: domain is missing or not a printable name"),
        (log(HEAD, GPU | {"domain": "\ud800"}), "line 2: domain is missing or not a printable name"),
        (log(HEAD, GPU | {"method": 7}), "line 2: method is missing or not a printable name"),
        (log(HEAD, GPU | {"modelled": 0}), "line 2: modelled is missing or neither true nor false"),
        (log(HEAD, GPU | {"engines": "m"}), "line 2: engines is not a list of names"),
        (log(HEAD, GPU | {"engines": ["m", "m"]}), "line 2: engines names one twice"),
        (log(HEAD, GPU | {"engines": None}), "line 2: engines is not a list of names"),
        (log(HEAD, *(GPU | {"domain": str(n)} for n in range(65))), "line 66: more than 64 domains"),
    ],
)
def test_anything_else_is_refused_with_its_line(data: bytes, fault: str) -> None:
    with pytest.raises(MeterError) as caught:
        parse_log(data)
    assert fault in str(caught.value)


GOOD = log(HEAD, GPU, row(0, 1), row(50, 2, gap=True), row(60, None, reason="lost"), row(70, 1, reset=True))


@settings(max_examples=examples(300))
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=4), st.integers(0, 4))
@example(len(GOOD) - 1, b"", 1)
def test_damaged_log_is_refused_or_is_another_log(at: int, put: bytes, cut: int) -> None:
    parsed = log_or_refusal(GOOD[:at] + put + GOOD[at + cut :])
    if isinstance(parsed, MeterLog):
        times = [reading.at_ns for reading in parsed.readings]
        assert times == sorted(times)


@settings(max_examples=examples(200))
@given(st.binary(max_size=300))
def test_any_bytes_give_a_log_or_a_meter_error(data: bytes) -> None:
    log_or_refusal(data)
    log_or_refusal(log(HEAD, GPU) + data)


def log_or_refusal(data: bytes) -> MeterLog | MeterError:
    try:
        return parse_log(data)
    except MeterError as refusal:
        return refusal


def play(clock: Clock, *rows: dict[str, Any]) -> RecordedMeter:
    return RecordedMeter(parse_log(log(HEAD, GPU, *rows)), monotonic_ns=clock)


def test_playback_gives_the_latest_reading_with_its_time_on_the_playback_clock() -> None:
    clock = Clock(1_000_000)
    meter = play(clock, row(500, 10), row(600, 20), row(700, 30))
    assert meter.read() == [Reading("gpu0", 1_000_000, 10)]
    clock.at_ns += 99
    assert meter.read() == [Reading("gpu0", 1_000_000, 10)]
    clock.at_ns += 1
    assert meter.read() == [Reading("gpu0", 1_000_100, 20)]


def test_playback_after_the_end_has_no_reading() -> None:
    clock = Clock(0)
    meter = play(clock, row(0, 10), row(100, 20))
    meter.read()
    clock.at_ns = 150
    assert meter.read() == [Reading("gpu0", 100, 20)]
    assert meter.read() == [Reading("gpu0", 150, None, "log-ended")]


def test_playback_starts_with_the_first_look() -> None:
    clock = Clock(0)
    meter = play(clock, row(0, 10), row(100, 20))
    clock.at_ns = 5_000
    assert meter.read() == [Reading("gpu0", 5_000, 10)]


def test_playback_of_a_domain_without_reading_yet_says_so() -> None:
    clock = Clock(0)
    cpu = GPU | {"domain": "cpu"}
    meter = RecordedMeter(parse_log(log(HEAD, GPU, cpu, row(0, 1), row(10, 5, "cpu"))), monotonic_ns=clock)
    assert meter.read() == [Reading("gpu0", 0, 1), Reading("cpu", 0, None, "no-reading")]


@pytest.mark.parametrize(
    ("passed", "reset", "gap"),
    [
        (row(10, 5), True, False),  # the counter fell, and rose above its old value before anyone looked
        (row(10, 60, reset=True), True, False),
        (row(10, 60, gap=True), False, True),
        (row(10, None, reason="lost"), False, True),
        (row(10, 60), False, False),
    ],
)
def test_playback_keeps_what_rows_said_that_passed_between_two_looks(
    passed: dict[str, Any], reset: bool, gap: bool
) -> None:
    clock = Clock(0)
    meter = play(clock, row(0, 50), passed, row(20, 100), row(30, 110))
    meter.read()
    clock.at_ns = 20
    assert meter.read() == [Reading("gpu0", 20, 100, reset=reset, gap=gap)]
    clock.at_ns = 30
    assert meter.read() == [Reading("gpu0", 30, 110)]


def test_playback_of_an_empty_log_has_no_reading() -> None:
    assert play(Clock(7)).read() == [Reading("gpu0", 7, None, "log-ended")]
