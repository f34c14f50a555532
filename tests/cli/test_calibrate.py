"""`mesh meter calibrate`, and what a gateway makes of its file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from mesh.cli import calibrate
from mesh.cli.calibrate import climb, default_levels, turns
from mesh.errors import MeterError, UsageError
from mesh.meter.calibration import read_calibration

POINTS = "busy_cores,watts\n0,20\n1,34\n2,43\n3,57\n"
METHOD = "cpu-time@12W+-3.043W by wall-fit/1"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    return path


def test_points_make_a_calibration_that_serve_uses(mesh, points: Path, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    made = mesh("meter", "calibrate", "--points", points, "--out", out, "--json")
    assert (made.code, made.json["method"], made.json["idle_u"]) == (0, METHOD, 20_500_000)
    assert read_calibration(out).fit.watts_u == 12_000_000
    told = mesh("serve", "--reference", "--cpu-calibration", out, "--state", tmp_path / "s", "--check", "--json").json
    assert (told["cpu_watts"], told["cpu_time"], told["meters"]) == ("12", METHOD, ["cpu-time"])
    config = tmp_path / "mesh.toml"
    config.write_text('[meter]\ncpu_calibration = "calibration.json"\n[[backend]]\nkind = "reference"\n')
    words = mesh("serve", "--config", config, "--check").out
    assert "energy: cpu time at 12 W, give or take 3.043 W, modelled\n" in words


def test_calibration_in_words(mesh, points: Path, tmp_path: Path) -> None:
    told = mesh("meter", "calibrate", "--points", points, "--out", tmp_path / "c")
    assert told.out.splitlines() == [
        "0 busy cores: 20 W", "1 busy cores: 34 W", "2 busy cores: 43 W", "3 busy cores: 57 W",
        "a busy core draws 12 W, give or take 3.043 W (95 %); with none the machine draws 20.5 W, which no serve is "
        "charged",
        f"receipts will say {METHOD}",
    ]  # fmt: skip
    assert told.err == f"written to {tmp_path / 'c'}\n"


@pytest.mark.parametrize("field", [{"processor": "another one"}, {"cores": 1_000_000}])
def test_calibration_of_another_machine_is_refused(mesh, points: Path, tmp_path: Path, field: dict[str, Any]) -> None:
    out = tmp_path / "c.json"
    mesh("meter", "calibrate", "--points", points, "--out", out)
    out.write_text(json.dumps(json.loads(out.read_text()) | field))
    refused = mesh("serve", "--reference", "--cpu-calibration", out, "--check")
    assert refused.code == 2
    assert f"calibration {out}: made on" in refused.err


def test_calibration_that_was_changed_is_refused(mesh, points: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    mesh("meter", "calibrate", "--points", points, "--out", out)
    out.write_text(out.read_text().replace('"watts_u": 12000000', '"watts_u": 1000000'))
    refused = mesh("serve", "--reference", "--cpu-calibration", out, "--check")
    assert refused.code == 3
    assert "its points give 12000000 watts_u" in refused.err


def test_watts_and_a_calibration_are_one_too_many(mesh, tmp_path: Path) -> None:
    refused = mesh("serve", "--reference", "--cpu-watts", "5", "--cpu-calibration", "c", "--check")
    assert (refused.code, "one of them" in refused.err) == (2, True)
    config = tmp_path / "mesh.toml"
    config.write_text('[meter]\ncpu_watts = 5\ncpu_calibration = "c"\n[[backend]]\nkind = "reference"\n')
    refused = mesh("serve", "--config", config, "--check")
    assert (refused.code, "one of them" in refused.err) == (2, True)


def test_nothing_is_written_over_and_nothing_half(mesh, points: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    out.write_text("mine")
    # said before anything is held: this ladder would take an hour
    refused = mesh("meter", "calibrate", "--out", out, "--settle", "3600")
    assert (refused.code, out.read_text()) == (3, "mine")
    refused = mesh("meter", "calibrate", "--out", tmp_path / "none" / "c.json", "--settle", "3600")
    assert (refused.code, "no such file or directory" in refused.err) == (3, True)
    points.write_text("busy_cores,watts\n0,20\n1,34\n")
    refused = mesh("meter", "calibrate", "--points", points, "--out", tmp_path / "new")
    assert (refused.code, "2 different loads, at least 3" in refused.err) == (3, True)
    points.write_text("busy_cores,watts\n0,x\n")
    refused = mesh("meter", "calibrate", "--points", points, "--out", tmp_path / "new")
    assert (refused.code, f"{points}: wall meter readings: line 2: watts" in refused.err) == (3, True)
    assert not (tmp_path / "new").exists()


def held(monkeypatch: pytest.MonkeyPatch, cores: int = 4) -> None:
    """A machine as busy as it is told to be: on a shared one nobody knows what else runs."""

    class Here:
        level = 0

        def __init__(self, level: int) -> None:
            Here.level = level

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *error: object) -> None:
            Here.level = 0

    class Busy:
        def cores_u(self) -> int:
            return Here.level * 10**6

    monkeypatch.setattr("mesh.meter.load.Load", Here)
    monkeypatch.setattr("mesh.meter.load.Busy", Busy)
    monkeypatch.setattr("mesh.meter.load.logical_cores", lambda: cores)


def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands but for what is slept."""
    now = [1_796_000_000.0]
    monkeypatch.setattr(calibrate.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(calibrate.time, "time_ns", lambda: int(now[0] * 10**9))
    monkeypatch.setattr(calibrate.time, "monotonic_ns", lambda: int((now[0] - 1_790_000_000) * 10**9))
    return now


def test_typed_readings_go_with_the_steps_up_and_down(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch)
    quick(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("20\n32 32.2\n44\n68\n68\n44\n32\n20\n"))
    told = mesh("meter", "calibrate", "--out", tmp_path / "c", "--cores", "0,1,2,4", "--json")
    assert [(p["busy_u"] // 10**6, p["watts_u"]) for p in told.json["points"]] == [
        (0, 20_000_000), (1, 32_100_000), (2, 44_000_000), (4, 68_000_000),
        (4, 68_000_000), (2, 44_000_000), (1, 32_000_000), (0, 20_000_000),
    ]  # fmt: skip
    assert told.json["watts_u"] == 11_996_000
    assert "step 8 of 8: 0 busy cores, 15 s until it counts" in told.err


def test_log_of_the_meter_is_cut_into_the_steps(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch)
    now = quick(monkeypatch)
    start = now[0]
    # each of three steps: 15 s to settle, of which nothing counts, then 20 s that do
    lines = ["time,watts"]
    for second in range(105):
        step, within = divmod(second, 35)
        lines.append(f"{start + second + 0.5:.1f},{20 + 12 * step if within >= 15 else 999}")
    log = tmp_path / "log.csv"
    log.write_text("\n".join(lines))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    arguments = ["--readings", log, "--cores", "0,1,2", "--rounds", "1", "--json"]
    told = mesh("meter", "calibrate", "--out", tmp_path / "c", *arguments)
    assert [(p["busy_u"], p["watts_u"]) for p in told.json["points"]] == [
        (0, 20_000_000), (1_000_000, 32_000_000), (2_000_000, 44_000_000),
    ]  # fmt: skip
    log.write_text("time,watts\n1,5\n")
    refused = mesh("meter", "calibrate", "--out", tmp_path / "d", *arguments)
    assert refused.code == 3
    assert "none of step 1" in refused.json["error"]["message"]


def test_readings_that_end_early_or_are_none_are_refused(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch)
    quick(monkeypatch)
    for typed, fault in (("20\n", "the readings end before the ladder does"), ("20\nhot\n", "expected a number")):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        refused = mesh("meter", "calibrate", "--out", tmp_path / "c", "--cores", "0,1,2")
        assert refused.code in (2, 3)
        assert fault in refused.err


def test_ladder_needs_cores_to_climb(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch, cores=1)
    refused = mesh("meter", "calibrate", "--out", tmp_path / "c")
    assert (refused.code, "--points" in refused.err) == (2, True)
    refused = mesh("meter", "calibrate", "--out", tmp_path / "c", "--cores", "0,1,2")
    assert (refused.code, "this machine has 1" in refused.err) == (2, True)
    with pytest.raises(UsageError):
        default_levels(1)
    assert default_levels(2) == (0, 1, 2)
    assert default_levels(64) == (0, 16, 32, 48, 64)
    assert turns((0, 1, 2), 3) == [0, 1, 2, 2, 1, 0, 0, 1, 2]


@pytest.mark.parametrize("text", ["", "0,1", "0,0,1", "0,x,2", "0,-1,2", ",".join(map(str, range(65)))])
def test_list_of_cores_that_is_none_is_refused(mesh, tmp_path: Path, text: str) -> None:
    assert mesh("meter", "calibrate", "--out", tmp_path / "c", f"--cores={text}").code == 2


def test_clock_that_is_set_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch)
    now = quick(monkeypatch)
    clock = iter([now[0], now[0] - 3600])
    monkeypatch.setattr(calibrate.time, "time_ns", lambda: int(next(clock) * 10**9))
    with pytest.raises(MeterError, match="the clock was set during step 1"):
        list(climb([0], 1, 1))


def test_real_ladder_holds_each_step_and_counts_the_machine() -> None:
    (step,) = climb([1], 0, 1, lambda: 30_000_000)
    assert step.to_ns - step.from_ns >= 900_000_000
    assert step.busy_u > 0
    assert step.watts_u == 30_000_000
