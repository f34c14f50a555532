"""INDEX.tsv, all that a runner needs, and the files that it stands for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conformance.case import ACCEPT, REJECT
from conformance.sums import SUMS, CannotRun, held, read_sums, text_of

_INDEX = "INDEX.tsv"
_FIELDS = 8
_FIRST = re.compile(r"# mesh/1 vectors v1 sha256sums:([0-9a-f]{64})")
_SHOWN = 80


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


def read_index(vectors: Path) -> tuple[list[Question], str]:
    """The questions, and the digest of the index as reports name it. Raises CannotRun, with the name of the file that
    is wrong: a client must not fail, or pass, for what happened to the vectors."""
    path = vectors / _INDEX
    if not path.is_file():
        raise CannotRun(f"no vectors in {vectors}: expected a file {_INDEX} there")
    text = text_of(path)
    first, *lines = text.splitlines() or [""]
    match = _FIRST.fullmatch(first)
    if match is None:
        raise CannotRun(
            f"{path}: line 1: expected '# mesh/1 vectors v1 sha256sums:' and 64 hex digits, got {first[:_SHOWN]!r}"
        )
    held(vectors, SUMS, match[1], by=_INDEX)
    sums = read_sums(vectors / SUMS)
    for name, digest in sums.items():
        held(vectors, name, digest)
    found: dict[str, Question] = {}
    for number, line in enumerate(lines, start=2):
        where = f"{path}: line {number}"
        question = _question(line, where)
        if question.id in found:
            raise CannotRun(f"{where}: a second case {question.id}")
        if f"{question.id}/vector.json" not in sums:
            raise CannotRun(f"{where}: no case {question.id}: {vectors / SUMS} has no {question.id}/vector.json")
        found[question.id] = question
    return list(found.values()), f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _question(line: str, where: str) -> Question:
    fields = line.split("\t")
    if len(fields) != _FIELDS or "" in fields:
        filled = len(fields) - fields.count("")
        raise CannotRun(f"{where}: expected {_FIELDS} fields with tabs between, none empty, got {filled}")
    case, op, arguments, code, answer, spec, rule, feature = fields
    if code not in (str(ACCEPT), str(REJECT)):
        raise CannotRun(f"{where}: expected exit {ACCEPT} or {REJECT}, got {code[:_SHOWN]!r}")
    words = (op, *(arguments.split(" ") if arguments != "-" else ()))
    return Question(case, words, int(code), _given(answer), spec, rule, _given(feature))


def _given(text: str) -> str | None:
    return None if text == "-" else text


def read_expected_failures(path: Path, known: Iterable[str]) -> frozenset[str]:
    """Case ids, one a line, `#` comments. Raises CannotRun for an id that is not in the index."""
    found = {text for line in text_of(path).splitlines() if (text := line.partition("#")[0].strip())}
    for name in sorted(found - set(known)):
        raise CannotRun(f"{path}: {name} is no case of the index")
    return frozenset(found)
