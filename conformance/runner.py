"""Asks a client every question of the index and compares: PROTOCOL.md, section Runners."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.case import ACCEPT
from conformance.index import Question, read_expected_failures, read_index
from conformance.sums import CannotRun

NOT_OFFERED = 11
TIMEOUT_S = 20
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """`exit` is None where there was none: a signal or no answer in time, which `fault` tells."""

    exit: int | None
    stdout: str
    fault: str = ""

    def __str__(self) -> str:
        return self.fault or f"exit {self.exit}, {self.stdout[:_SHOWN]!r}"


Ask = Callable[[Sequence[str], Path], Reply]
Counting = Callable[[int], AbstractContextManager[Callable[[], None]]]


@dataclass(slots=True)
class Report:
    """`failed` maps case ids to what was wrong."""

    spec: str
    index: str
    client: str
    cases: int = 0
    passed: int = 0
    expected_failures: int = 0
    not_offered: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        for case, fault in self.failed.items():
            yield f"FAIL {case}: {fault}"
        yield f"spec {self.spec}"
        yield f"index {self.index}"
        yield f"client {self.client}"
        yield (
            f"cases {self.cases} passed {self.passed} failed {len(self.failed)} "
            f"expected-failures {self.expected_failures} not-offered {self.not_offered}"
        )

    def to_json(self) -> dict[str, Any]:
        names = ("spec", "index", "client", "cases", "passed", "expected_failures", "not_offered", "failed")
        return {name: getattr(self, name) for name in names}


def absolute(words: Sequence[str], start: Path) -> list[str]:
    """The client's command line, with words that name a file from `start` made absolute: each case has a folder of its
    own. The first word, unless it holds a slash, is looked up like any program. Raises CannotRun where it is not
    there."""
    if not words:
        raise CannotRun("no client")
    out = [
        os.path.abspath(start / word) if ("/" in word or number) and (start / word).is_file() else word
        for number, word in enumerate(words)
    ]
    if shutil.which(out[0]) is None:
        raise CannotRun(f"{words[0]}: no such client")
    return out


def program(words: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Ask:
    """A client that is a program."""

    def ask(question: Sequence[str], folder: Path) -> Reply:
        try:
            done = subprocess.run(
                [*words, *question],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return Reply(None, "", f"no answer within {timeout_s} s")
        except OSError as e:
            return Reply(None, "", f"could not be started: {e.strerror}")
        return reply_of(done.returncode, done.stdout)

    return ask


def reply_of(code: int, stdout: bytes) -> Reply:
    """`code` is below 0 for a signal."""
    if code < 0:
        return Reply(None, "", f"killed by signal {-code}")
    return Reply(code, stdout.decode(errors="backslashreplace"))


def judge(question: Question, reply: Reply, features: frozenset[str]) -> str | None:
    """What is wrong with a reply, None where nothing is. Whether the client may leave the case out is for `run`."""
    if reply.exit == question.exit and reply.stdout == question.stdout:
        return None
    wanted = (
        f"expected exit {question.exit}, {question.stdout!r}" if question.stdout else f"expected exit {question.exit}"
    )
    note = ""
    if reply.exit == NOT_OFFERED:
        note = " (a feature that the client says it has)" if question.feature in features else " (not optional)"
    return f"{question.step}: {wanted}, got {reply}{note}"


def run(
    vectors: Path,
    client: str,
    ask: Ask,
    *,
    only: str = "",
    expected_failures: Path | None = None,
    jobs: int | None = None,
    counting: Counting = lambda total: nullcontext(lambda: None),
) -> Report:
    """Ask everything whose id starts with `only`. `counting` is given how many that are, and what it gives is called
    after each. Raises CannotRun."""
    questions, index = read_index(vectors)
    known: Mapping[str, Question] = {question.id: question for question in questions}
    allowed = read_expected_failures(expected_failures, known) if expected_failures else frozenset()
    asked = [question for question in questions if question.id.startswith(only)]
    if not asked:
        raise CannotRun(f"no case begins with {only!r}")
    features = _features(ask(["features"], vectors))
    report = Report("mesh/1", index, client, len(asked))
    with counting(len(asked)) as tick, ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        replies = pool.map(lambda question: ask(question.words, vectors / question.id), asked)
        for question, reply in zip(asked, replies, strict=True):
            _count(report, question, reply, features, allowed)
            tick()
    if features is None:
        report.failed["features"] = "the operation `features` did not answer with names and exit 0"
    return report


def _features(reply: Reply) -> frozenset[str] | None:
    return frozenset(reply.stdout.split()) if reply.exit == ACCEPT else None


def _count(
    report: Report, question: Question, reply: Reply, features: frozenset[str] | None, allowed: frozenset[str]
) -> None:
    has = features or frozenset()
    if reply.exit == NOT_OFFERED and question.feature and question.feature not in has and not reply.stdout:
        report.not_offered += 1
        return
    fault = judge(question, reply, has)
    if question.id in allowed:
        if fault is None:
            report.failed[question.id] = "passes, and is on the list of expected failures"
        else:
            report.expected_failures += 1
    elif fault is None:
        report.passed += 1
    else:
        report.failed[question.id] = fault
