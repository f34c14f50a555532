"""A fork answers as a program does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.forked import Forked
from conformance.index import read_index
from conformance.regenerate import ROOT, VECTORS
from conformance.runner import Reply, program, run

QUESTIONS, _ = read_index(VECTORS)
STARTED = program([sys.executable, str(ROOT / "conformance" / "clients" / "mesh_client.py")])


@pytest.fixture(scope="module")
def ask() -> Iterator[Forked]:
    with Forked() as forked:
        yield forked


@pytest.mark.parametrize(
    "words",
    [
        ["features"],
        ["request", "input.cbor"],
        ["receipt", "input.cbor"],
        ["request", "no-such-file"],
        ["no-such-operation"],
        ["text", "content-id", "b3:\u00fc"],
    ],
    ids=" ".join,
)
def test_fork_answers_as_a_program_does(ask: Forked, words: list[str]):
    folder = VECTORS / "request" / "minimal"
    assert ask(words, folder) == STARTED(words, folder)


def test_own_client_passes(ask: Forked):
    report = run(VECTORS, "ours", ask, only="sequence/")
    assert (report.failed, report.passed) == ({}, report.cases)


@pytest.mark.deep
def test_own_client_passes_all(ask: Forked):
    report = run(VECTORS, "ours", ask)
    assert (report.failed, report.passed, report.not_offered) == ({}, len(QUESTIONS), 0)


def test_relative_folder_is_one_of_where_it_was_asked(ask: Forked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(VECTORS)
    assert ask(["request", "input.cbor"], Path("request/minimal")).exit == 0


def test_fork_that_does_not_answer_in_time_is_ended(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it
    with Forked(timeout_s=1) as ask:
        assert ask(["request", "pipe"], tmp_path) == Reply(None, "", "no answer within 1 s")
        assert ask._process.poll() is None


FORKS = """
import os, signal, sys
from conformance.forked import fork

def main(words):
    os.environ["SEEN"] = os.environ.get("SEEN", "") + words[0]
    print(os.environ["SEEN"], os.getcwd(), flush=words[0] == "killed")
    print("on stderr", file=sys.stderr)
    assert sys.stdin.read() == ""
    if words[0] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "failed":
        raise RuntimeError
    return int(words[1])

for words in (["a", "0"], ["b", "10"], ["killed"], ["failed"]):
    print(fork(main, words, sys.argv[1], 20))
"""


def test_nothing_that_a_fork_does_is_left_for_the_next(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        str((0, f"a {tmp_path}\n".encode())),
        str((10, f"b {tmp_path}\n".encode())),
        str((-9, f"killed {tmp_path}\n".encode())),
        str((1, f"failed {tmp_path}\n".encode())),
    ]


def test_process_that_forks_and_ended_passes_nothing():
    with Forked() as ask:
        ask._process.kill()
        ask._process.wait()
        report = run(VECTORS, "x", ask, only="sequence/five")
    assert report.passed == 0
    assert "the process that forks has ended" in report.failed["sequence/five"]
