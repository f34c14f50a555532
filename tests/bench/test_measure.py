"""What the table says of figures: not the figures themselves, which no test can promise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides, measure, process_cpu_ns, row_of, take_turns
from bench.report import results_md, table
from bench.venvs import ROOT, python_of

PLAN = Plan(rounds=3, cpu_calls=1, callers=1, serves=1, file_bytes=1)


def comparison(goal: Goal | None, sides: Sides | None = None) -> Comparison:
    @contextmanager
    def yielding(plan: Plan) -> Iterator[Sides]:
        assert sides is not None
        yield sides

    return Comparison("row", "us", "ours", "peer", goal, yielding)


@pytest.mark.parametrize(
    ("goal", "ours", "peer", "met"),
    [
        (Goal("<=", 2.0), 4.0, 2.0, True),
        (Goal("<=", 2.0), 4.0001, 2.0, False),
        (Goal(">=", 0.8), 0.8, 1.0, True),
        (Goal(">=", 0.8), 0.7999, 1.0, False),
    ],
)
def test_goal_bounds_ours_over_peer(goal: Goal, ours: float, peer: float, met: bool) -> None:
    assert row_of(comparison(goal), [ours], [peer]).met is met


def test_goal_is_not_met_by_rounding() -> None:
    row = row_of(comparison(Goal("<=", 2.0)), [2.00001], [1.0])
    assert (row.ratio, row.met) == (2.0, False)


def test_limit_is_told_where_the_goal_is_missed() -> None:
    bounded = replace(comparison(Goal("<=", 2.0)), limit="one signature")
    about = {"machine": {"cores": 2, "architecture": "a", "python": "3", "sqlite": "3"}}
    assert "Limit: one signature." in results_md([row_of(bounded, [3.0], [1.0])], about)
    assert "Limit" not in results_md([row_of(bounded, [2.0], [1.0])], about)


def test_row_without_a_goal_has_figures_and_no_judgement() -> None:
    row = row_of(comparison(None), [3.0], [1.5])
    assert (row.ratio, row.goal, row.met) == (2.0, None, None)
    assert "| 2 (2 to 2)" in table([row])
    assert "SKIPPED" not in table([row])
    assert "None" not in table([row])


def test_row_has_medians_and_spreads() -> None:
    row = row_of(comparison(Goal("<=", 2.0)), [3.0, 1.0, 2.0], [4.0, 4.0, 1.0])
    assert (row.ours, row.peer, row.ratio) == (2.0, 4.0, 0.5)
    assert (row.ours_spread, row.peer_spread, row.ratio_spread) == ((1.0, 3.0), (1.0, 4.0), (0.25, 2.0))


def test_rounds_take_turns_after_one_that_does_not_count() -> None:
    said: list[str] = []

    def side(name: str) -> float:
        said.append(name)
        return len(said)

    ours, peer = take_turns(lambda: side("ours"), lambda: side("peer"), 3)
    assert said == ["ours", "peer", "ours", "peer", "peer", "ours", "ours", "peer"]
    assert (ours, peer) == ([3, 6, 7], [4, 5, 8])


def test_missing_peer_leaves_no_figure() -> None:
    row = measure(comparison(Goal("<=", 2.0), Sides(lambda: 1.0, PeerMissing("not here"))), PLAN)
    assert (row.ours, row.peer, row.ratio, row.met, row.reason) == (1.0, None, None, None, "not here")
    assert "SKIPPED" in table([row])


@pytest.mark.deep
def test_peer_that_cannot_be_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.venvs.ROOT", tmp_path)
    nowhere = tmp_path / "no-such-package"
    with pytest.raises(PeerMissing, match=r"^none could not be installed \(exit \d+\)$"):
        python_of("none", str(nowhere))


@pytest.mark.deep
def test_command_writes_rows_with_their_goals(tmp_path: Path) -> None:
    assert main(["--quick", "--only", "bare", "--only", "durable", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == [
        "seal vs bare Ed25519 signature",
        "check vs bare Ed25519 verification",
        "durable sealing, 64 callers, vs unsigned",
    ]
    assert [row["goal"] for row in rows] == ["<= 2.0", "<= 1.5", ">= 0.5"]
    for row in rows:
        assert row["ours"] > 0
        assert row["peer"] > 0
        assert isinstance(row["met"], bool)
    assert "| ratio (ours / peer)" in (tmp_path / "RESULTS.md").read_text()


def test_weights_row_without_b3sum_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--quick", "--only", "b3sum", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert (row["peer"], row["ratio"], row["met"]) == (None, None, None)
    assert "b3sum is not on PATH" in row["reason"]


@pytest.mark.deep
def test_gateway_is_measured_beside_a_proxy_in_processes_of_their_own(tmp_path: Path) -> None:
    assert main(["--quick", "--only", "proxy, plain, 16", "--only", "added", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["name"], row["goal"]) for row in rows] == [
        ("gateway vs reverse proxy, plain, 16 at once", "<= 3"), ("time added, gateway vs reverse proxy", "<= 5"),
    ]  # fmt: skip
    assert rows[0]["ours"] > rows[0]["peer"] > 0


@pytest.mark.deep
def test_sealed_serves_are_counted_over_http(tmp_path: Path) -> None:
    assert main(["--quick", "--only", "at once, on asyncio", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert (row["peer"], row["goal"]) == (1000, ">= 1")
    assert row["ours"] > 0


def test_cpu_time_of_another_process_is_its_own() -> None:
    work = (
        "import sys, time; [None for _ in range(300_000)]; print(time.process_time_ns(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = int(process.stdout.readline())
        assert said <= process_cpu_ns(process.pid) < said + 10**9


def test_part_of_the_rows_does_not_replace_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "seal"])
    assert "--out" in capsys.readouterr().err


def test_module_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "--quick" in ran.stdout


@pytest.mark.deep
@pytest.mark.real_model
def test_replays_are_measured_in_turns_with_their_serves(tmp_path: Path) -> None:
    assert main(["--quick", "--only", "256 tokens, one", "--only", "256 tokens, 2", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    by_name = {row["name"]: row for row in rows}
    names = [f"replay by {how} vs serve, 256 tokens, one thread" for how in ("prefill", "decoding")]
    assert by_name[names[0]]["peer"] == by_name[names[1]]["peer"] > 0, "both are held against the same serves"
    assert {row["goal"] for row in rows} == {"<= 0.5", "<= 1.15", None}
