"""Asks a client every question of the index and compares: PROTOCOL.md, section Runners."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACCEPT, REJECT, NOT_OFFERED = 0, 10, 11
TIMEOUT_S = 20
_FIELDS = 8
_FIRST = "# mesh/1 vectors v1 sha256sums:"
_SHOWN = 200


class CannotRun(Exception):
    """The vectors are damaged, or the client is not there. Says nothing about a client."""


@dataclass(frozen=True, slots=True)
class Question:
    """A line of the index. `answer` is the expected line or class, None for none."""

    id: str
    words: tuple[str, ...]
    exit: int
    answer: str | None
    spec: str
    rule: str
    feature: str | None

    @property
    def stdout(self) -> str:
        if self.exit == REJECT:
            return f"reject {self.answer}\n"
        return "" if self.answer is None else f"{self.answer}\n"

    @property
    def step(self) -> str:
        return self.spec if self.rule == "-" else f"{self.spec} {self.rule}"


@dataclass(frozen=True, slots=True)
class Reply:
    """`exit` is None where there was none: a signal or no answer in time, which `fault` tells."""

    exit: int | None
    stdout: str
    fault: str = ""

    def __str__(self) -> str:
        return self.fault or f"exit {self.exit}, {self.stdout[:_SHOWN]!r}"


Ask = Callable[[Sequence[str], Path], Reply]


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


def read_index(vectors: Path) -> tuple[list[Question], str]:
    """The questions, and the digest of the index as reports name it. Raises CannotRun."""
    try:
        data = (vectors / "INDEX.tsv").read_bytes()
    except OSError as e:
        raise CannotRun(f"no vectors: {e.filename}: {e.strerror}") from None
    first, *lines = data.decode().splitlines()
    if not first.startswith(_FIRST):
        raise CannotRun("INDEX.tsv: not the index of these vectors")
    _check_files(vectors, first.removeprefix(_FIRST))
    questions = []
    for line in lines:
        fields = line.split("\t")
        if len(fields) != _FIELDS:
            raise CannotRun(f"INDEX.tsv: a line of {len(fields)} fields, expected {_FIELDS}")
        case, op, arguments, code, answer, spec, rule, feature = fields
        words = (op, *(arguments.split(" ") if arguments != "-" else ()))
        questions.append(Question(case, words, int(code), _given(answer), spec, rule, _given(feature)))
    return questions, f"sha256:{hashlib.sha256(data).hexdigest()}"


def _given(text: str) -> str | None:
    return None if text == "-" else text


def _check_files(vectors: Path, expected: str) -> None:
    """A client must not fail, or pass, for what happened to the vectors."""
    try:
        sums = (vectors / "SHA256SUMS").read_bytes()
        if hashlib.sha256(sums).hexdigest() != expected:
            raise CannotRun("SHA256SUMS: not the one that INDEX.tsv names")
        for line in sums.decode().splitlines():
            digest, _, path = line.partition("  ")
            if hashlib.sha256((vectors / path).read_bytes()).hexdigest() != digest:
                raise CannotRun(f"{path}: not the file that SHA256SUMS names")
    except OSError as e:
        raise CannotRun(f"{e.filename}: {e.strerror}") from None


def read_expected_failures(path: Path, known: Iterable[str]) -> frozenset[str]:
    """Case ids, one a line, `#` comments. Raises CannotRun for an id that is not in the index."""
    try:
        lines = path.read_text().splitlines()
    except OSError as e:
        raise CannotRun(f"{path}: {e.strerror}") from None
    found = {text for line in lines if (text := line.partition("#")[0].strip())}
    for name in sorted(found - set(known)):
        raise CannotRun(f"{path}: {name} is no case of the index")
    return frozenset(found)


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
        if done.returncode < 0:
            return Reply(None, "", f"killed by signal {-done.returncode}")
        return Reply(done.returncode, done.stdout.decode(errors="backslashreplace"))

    return ask


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
) -> Report:
    """Ask everything whose id starts with `only`. Raises CannotRun."""
    questions, index = read_index(vectors)
    known: Mapping[str, Question] = {question.id: question for question in questions}
    allowed = read_expected_failures(expected_failures, known) if expected_failures else frozenset()
    asked = [question for question in questions if question.id.startswith(only)]
    if not asked:
        raise CannotRun(f"no case begins with {only!r}")
    features = _features(ask(["features"], vectors))
    report = Report("mesh/1", index, client, len(asked))
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        replies = pool.map(lambda question: ask(question.words, vectors / question.id), asked)
        for question, reply in zip(asked, replies, strict=True):
            _count(report, question, reply, features, allowed)
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
