"""The runner takes nobody's word: not of clients that accept all, refuse all, offer nothing, stall or crash."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.case import Case
from conformance.client import Client
from conformance.index import read_index
from conformance.regenerate import ROOT, VECTORS
from conformance.runner import Reply, absolute, program, run
from conformance.sums import CannotRun

QUESTIONS, INDEX = read_index(VECTORS)
BAD_CLIENTS = ("accept_all", "refuse_all", "crash", "offer_nothing")
SMALL = "sequence/"


def ours(words: Sequence[str], folder: Path) -> Reply:
    op, *arguments = words
    return Reply(*Client(folder).answer(op, arguments))


def test_report_names_the_spec_and_the_index():
    report = run(VECTORS, "ours", ours)
    assert report.failed == {}
    assert list(report.lines()) == [
        "spec mesh/1",
        f"index {INDEX}",
        "client ours",
        f"cases {len(QUESTIONS)} passed {len(QUESTIONS)} failed 0 expected-failures 0 not-offered 0",
    ]
    assert report.to_json()["passed"] == len(QUESTIONS)


def test_run_tells_how_far_it_is():
    told: list[int] = []

    @contextmanager
    def counting(total: int) -> Iterator[Callable[[], None]]:
        told.append(total)
        yield lambda: told.append(0)

    report = run(VECTORS, "ours", ours, only=SMALL, counting=counting)
    assert told == [report.cases, *[0] * report.cases]


@pytest.mark.parametrize("name", BAD_CLIENTS)
def test_client_that_is_none_fails(name):
    client = ROOT / "conformance" / "clients" / f"{name}.sh"
    report = run(VECTORS, name, program([str(client)]), only="disclosure/")
    asked = [case for case in QUESTIONS if case.id.startswith("disclosure/")]
    assert report.cases == len(asked)
    lucky = [case for case in asked if name == "refuse_all" and case.answer == "schema"]
    assert report.passed == len(lucky)
    assert len(report.failed) == len(asked) - len(lucky)


@pytest.mark.parametrize("code", [1, 2, 3, 12, 101, 134, 139, 255])
def test_other_exit_codes_never_pass(code):
    report = run(VECTORS, "x", lambda words, _: Reply(0 if words == ["features"] else code, ""), only=SMALL)
    assert report.passed == report.not_offered == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda reply: Reply(reply.exit, reply.stdout + "\n"), "got exit"),
        (lambda reply: Reply(reply.exit, reply.stdout.rstrip("\n") or "b3:"), "got exit"),
        (lambda reply: Reply(reply.exit, "ok\n" + reply.stdout), "got exit"),
        (lambda reply: Reply(10 - reply.exit, reply.stdout), "got exit"),
        (lambda reply: Reply(None, "", "killed by signal 11"), "killed by signal 11"),
    ],
)
def test_nearly_right_is_wrong(change, said):
    def nearly(words: Sequence[str], at: Path) -> Reply:
        return ours(words, at) if words[0] == "features" else change(ours(words, at))

    report = run(VECTORS, "x", nearly, only="rece")
    assert report.passed == 0
    assert len(report.failed) == sum(case.id.startswith("rece") for case in QUESTIONS) > 50
    assert all(said in fault for fault in report.failed.values())


def test_failure_says_which_step_of_the_spec():
    report = run(VECTORS, "x", lambda words, _: Reply(0, ""), only="envelope/canonical-wide-tag")
    (fault,) = report.failed.values()
    assert fault.startswith("envelope 2: expected exit 10, 'reject canonical\\n', got exit 0")


def test_optional_feature_may_be_left_out_only_where_it_is_not_claimed():
    def without(claimed: str):
        def ask(words: Sequence[str], folder: Path) -> Reply:
            if words[0] == "features":
                return Reply(0, claimed)
            return Reply(11, "") if words[0] == "replay" else ours(words, folder)

        return run(VECTORS, "x", ask, only="re")

    replays = sum(case.words[0] == "replay" for case in QUESTIONS)
    report = without("reference\n")
    assert (report.not_offered, report.failed) == (replays, {})
    report = without("reference\nreplay\n")
    assert (report.not_offered, len(report.failed)) == (0, replays)
    assert all("a feature that the client says it has" in fault for fault in report.failed.values())


def test_client_that_cannot_name_its_features_fails():
    report = run(VECTORS, "x", lambda words, at: Reply(1, "") if words == ["features"] else ours(words, at), only=SMALL)
    assert list(report.failed) == ["features"]


def broken(words: Sequence[str], folder: Path) -> Reply:
    return Reply(0, "9\n") if folder.name in ("five", "gap") else ours(words, folder)


def test_expected_failures_are_strict(tmp_path: Path):
    known = tmp_path / "known"
    known.write_text("# see there\nsequence/five  # for now\n\nsequence/gap\n")
    report = run(VECTORS, "x", broken, only=SMALL, expected_failures=known)
    assert (report.failed, report.expected_failures) == ({}, 2)
    report = run(VECTORS, "x", ours, only=SMALL, expected_failures=known)
    assert set(report.failed) == {"sequence/five", "sequence/gap"}
    assert "expected failures" in report.failed["sequence/five"]
    known.write_text("sequence/six\n")
    with pytest.raises(CannotRun, match="sequence/six is no case"):
        run(VECTORS, "x", ours, only=SMALL, expected_failures=known)
    with pytest.raises(CannotRun):
        run(VECTORS, "x", ours, expected_failures=tmp_path / "none")


def test_damaged_vectors_are_nobodys_fault(tmp_path: Path):
    copy = tmp_path / "v1"
    shutil.copytree(VECTORS, copy)
    run(copy, "x", ours, only=SMALL)
    (copy / "sequence/five/a.cbor").write_bytes(b"")
    with pytest.raises(CannotRun, match=r"sequence/five/a.cbor: not the file"):
        run(copy, "x", ours, only=SMALL)
    (copy / "SHA256SUMS").write_bytes(b"")
    with pytest.raises(CannotRun, match="SHA256SUMS"):
        run(copy, "x", ours, only=SMALL)
    (copy / "INDEX.tsv").unlink()
    with pytest.raises(CannotRun, match="no vectors"):
        run(copy, "x", ours, only=SMALL)
    with pytest.raises(CannotRun, match="no case begins"):
        run(VECTORS, "x", ours, only="nothing/")


def test_program_is_started_in_the_folder_of_the_case(tmp_path: Path):
    ask = program([sys.executable, "-c", "import os, sys; print(os.getcwd(), *sys.argv[1:])"])
    assert ask(["a", "b"], tmp_path) == Reply(0, f"{tmp_path} a b\n")
    assert program(["/nowhere/at-all"])(["a"], tmp_path).exit is None


def test_program_that_stalls_or_dies_has_no_exit_code(tmp_path: Path):
    wait = program(
        [sys.executable, "-c", "import sys; sys.stdin.buffer.raw; import time; time.sleep(60)"], timeout_s=0.2
    )
    assert "no answer" in wait(["a"], tmp_path).fault
    die = program(["sh", "-c", "kill -KILL $$"])
    assert die(["a"], tmp_path).fault == "killed by signal 9"


def test_words_that_name_files_are_made_absolute(tmp_path: Path):
    (tmp_path / "client.js").touch()
    (tmp_path / "sh").touch()
    link = tmp_path / "link"
    link.symlink_to("/bin/sh")
    assert absolute(["sh", "client.js", "-x", "sh"], tmp_path) == [
        "sh", str(tmp_path / "client.js"), "-x", str(tmp_path / "sh")
    ]  # fmt: skip
    assert absolute(["./link"], tmp_path) == [str(link)]  # an environment's Python is known by where it is called from
    for words in ([], ["no-such-program-at-all"], ["./none"]):
        with pytest.raises(CannotRun):
            absolute(words, tmp_path)


def test_a_case_knows_its_line():
    case = Case("a/b", "op", (), 0, None, "ids", None, "x.", {})
    assert case.line == "a/b\top\t-\t0\t-\tids\t-\t-"
