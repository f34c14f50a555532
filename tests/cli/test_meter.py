"""`mesh meter`: what can be measured, live, and as a log that is played back."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from mesh.cli.meter import drawn
from mesh.meter.protocol import Domain, Reading
from mesh.meter.rapl import RaplMeter
from mesh.meter.recorded import log_lines, parse_log, read_log, reading_line
from tests.meter.powercap_tree import laptop

S = 10**9
MESH = (sys.executable, "-m", "mesh.cli.main")


def test_probe_tells_of_everything_asked_for(mesh, tmp_path: Path) -> None:
    laptop(tmp_path)
    found = mesh("meter", "probe", "--meter", f"rapl={tmp_path}", "--json").json["found"]
    assert {one["name"]: one["figure"] for one in found} == {
        "rapl:package-0": "measured",
        "intel-rapl:0:0 (core)": "part",
        "intel-rapl:0:1 (uncore)": "part",
        "intel-rapl:1 (psys)": "part",
        "intel-rapl-mmio:0 (package-0)": "part",
        "cpu-time": "modelled",
    }
    assert found[0]["method"] == "rapl@package+dram"


def test_probe_says_why_there_is_nothing(mesh, tmp_path: Path) -> None:
    result = mesh("meter", "probe", "--meter", f"rapl={tmp_path}")
    assert (result.code, result.err) == (0, "")
    (row,) = [row for row in result.out.splitlines() if row.startswith("rapl ")]
    assert "absent" in row
    assert str(tmp_path) in row
    assert row.endswith("(no-zones)")


def test_probe_of_this_machine_ends(mesh) -> None:
    found = mesh("meter", "probe", "--json").json["found"]
    assert {one["meter"] for one in found} == {"rapl", "nvml", "cpu-time"}
    assert all("reason" in one for one in found if one["figure"] == "absent")


def test_watch_shows_power_of_what_counts_and_a_reason_of_the_rest(mesh, tmp_path: Path) -> None:
    result = mesh(
        "meter", "watch", "--meter", f"rapl={tmp_path}", "--pid", os.getpid(), "--cpu-watts", "10", "--seconds", "1",
        "--interval-ms", "500", "--json",
    )  # fmt: skip
    looks = [{row["domain"]: row for row in json.loads(line)["readings"]} for line in result.out.splitlines()]
    assert len(looks) == 3
    cpu = f"cpu-time:pid-{os.getpid()}"
    for before, after in itertools.pairwise(looks):
        assert after["rapl"]["reason"] == "no-zones"
        assert "watts" not in after["rapl"]
        spent, elapsed = (after[cpu][field] - before[cpu][field] for field in ("uj", "at_ns"))
        assert Decimal(after[cpu]["watts"]) == round(Decimal(spent * 1000) / elapsed, 3)
    assert "watts" not in looks[0][cpu]


def test_watch_in_words(mesh, tmp_path: Path) -> None:
    result = mesh(
        "meter", "watch", "--meter", f"rapl={tmp_path}", "--seconds", "1", "--interval-ms", "1000"
    )  # fmt: skip
    assert result.out.splitlines() == ["rapl absent: no-zones"] * 2


def test_record_writes_a_log_that_is_played_back(mesh, tmp_path: Path) -> None:
    laptop(tmp_path / "tree")
    path = tmp_path / "log"
    result = mesh(
        "meter", "record", "--out", path, "--meter", f"rapl={tmp_path / 'tree'}", "--pid", os.getpid(), "--cpu-watts",
        "10", "--seconds", "1", "--interval-ms", "200", "--json",
    )  # fmt: skip
    log = read_log(path)
    names = ["rapl:package-0", f"cpu-time:pid-{os.getpid()}"]
    assert [domain.name for domain in log.domains] == names == result.json["domains"]
    assert len(log.readings) == result.json["readings"] == 12
    assert all(reading.uj is not None for reading in log.readings)
    assert result.json["absent"] == {}


def test_record_says_what_had_no_figure(mesh, tmp_path: Path) -> None:
    nothing = ("--meter", f"rapl={tmp_path / 'none'}", "--seconds", "1", "--interval-ms", "1000")
    told = mesh("meter", "record", "--out", tmp_path / "log", *nothing)
    assert (told.code, told.err.splitlines()) == (
        0,
        [f"2 readings of 1 domain written to {tmp_path / 'log'}", "rapl: no reading has a figure (no-powercap)"],
    )
    assert mesh("meter", "record", "--out", tmp_path / "l", *nothing, "--json").json["absent"] == {
        "rapl": "no-powercap"
    }


def test_record_ends_with_ctrl_c_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    command = [*MESH, "meter", "record", "--out", path, "--pid", str(os.getpid()), "--cpu-watts", "1"]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
        while not path.exists() or b"at_ns" not in path.read_bytes():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 0
    assert "1 domain written" in said
    assert len(read_log(path).readings) >= 1


def test_record_writes_over_nothing(mesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("mine")
    result = mesh("meter", "record", "--out", path, "--meter", f"rapl={tmp_path}", "--seconds", "1")
    assert result.code == 3
    assert path.read_text() == "mine"


def test_record_that_cannot_read_leaves_no_log(mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop(tmp_path / "tree")
    path = tmp_path / "log"

    def broken(self: RaplMeter) -> list[Reading]:
        raise PermissionError(13, "Permission denied", "energy_uj")

    monkeypatch.setattr(RaplMeter, "read", broken)
    result = mesh("meter", "record", "--out", path, "--meter", f"rapl={tmp_path / 'tree'}", "--seconds", "1")
    assert (result.code, result.err) == (3, "mesh meter: energy_uj: permission denied\n")
    assert not path.exists()
    path.write_text("mine")
    result = mesh("meter", "record", "--out", path, "--meter", f"rapl={tmp_path / 'tree'}", "--seconds", "1")
    assert (result.code, result.err) == (3, f"mesh meter: {path}: file exists\n")
    assert path.read_text() == "mine"


# A file of this process may grow to so many bytes, as on a disk that is full. A compiled module would too.
FULL = """
import resource, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from mesh.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("limit", [0, 300])
def test_record_on_a_full_disk_leaves_what_was_written_or_nothing(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "log"
    words = ("meter", "record", "--out", path, "--meter", f"rapl={tmp_path}", "--interval-ms", "1", "--seconds", "60")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, f"mesh meter: {path}: file too large\n")
    assert path.exists() == bool(limit)


def test_record_of_more_domains_than_a_log_holds_is_refused(mesh, tmp_path: Path) -> None:
    cards = ",".join(map(str, range(65)))
    result = mesh("meter", "record", "--out", tmp_path / "log", "--meter", f"nvml={cards}", "--seconds", "1")
    assert (result.code, result.err) == (2, "mesh meter: 65 domains: a log holds at most 64\n")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("flags", [("--pid", "1"), ("--cpu-watts", "5"), ("--meter", "sun"), ("--seconds", "0")])
def test_flags_that_do_not_go_together_are_refused(mesh, flags: tuple[str, ...]) -> None:
    assert mesh("meter", "watch", *flags).code == 2


@pytest.mark.parametrize(
    ("before", "now", "watts"),
    [
        (Reading("d", S, 0), Reading("d", 2 * S, 100_000_000), 100),
        (Reading("d", S, 0), Reading("d", 4 * S, 300_000_000), 100),  # EN-09 c: a late look is a longer one
        (None, Reading("d", S, 5), None),
        (Reading("d", S, None, "lost"), Reading("d", 2 * S, 5), None),
        (Reading("d", S, 5), Reading("d", 2 * S, None, "lost"), None),
        (Reading("d", S, 5), Reading("d", 2 * S, 9, reset=True), None),
        (Reading("d", S, 5), Reading("d", 2 * S, 4), None),
        (Reading("d", S, 5), Reading("d", S, 5), None),
    ],
)
def test_power_is_over_the_time_that_passed(before: Reading | None, now: Reading, watts: int | None) -> None:
    assert drawn(before, now) == watts


def test_what_a_log_says_survives_writing_and_reading() -> None:
    domains = (
        Domain("gpu:GPU-aa", "nvml-total", 20, None, modelled=False),
        Domain("cpu \u00e9", "cpu-time@5W", 10, frozenset({"b", "a"}), modelled=True),
    )
    readings = (
        Reading("gpu:GPU-aa", 5, 81),
        Reading("cpu \u00e9", 5, None, "no-process"),
        Reading("gpu:GPU-aa", 9, 3, reset=True),
        Reading("cpu \u00e9", 9, 7, gap=True),
    )
    log = parse_log(b"".join([*log_lines(domains), *map(reading_line, readings)]))
    assert (log.domains, log.readings) == (domains, readings)


def test_reading_that_came_before_the_one_above_it_is_written_as_late() -> None:
    assert json.loads(reading_line(Reading("d", 5, 1), not_before_ns=9))["at_ns"] == 9
    assert json.loads(reading_line(Reading("d", 5, None, "Not A Token")))["reason"] == "meter-unreadable"
