"""Typed decisions in the child: given options scored as ways to go on from one prompt.

The prompt is computed once, in a context of the decision's own; each option is a sequence that begins with its cells,
and the ids of all options go through the model together, in batches. Nothing is sampled and nothing is made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mesh.engine.gguf_context import Context, Feed, Row
from mesh.engine.gguf_model import Model
from mesh.errors import EngineFailed


@dataclass(frozen=True, slots=True)
class Question:
    """A decision as the child was asked for it. `serve` is the parent's number for it; `ending`: an option is scored
    with the end of the answer after it."""

    serve: int
    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    ending: bool


@dataclass(slots=True)
class Answers:
    """What came of one step: (serve, natural log-probability of each option) of a decision that was made, the one that
    was called off, and the one that could not be made, with why."""

    decided: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    question: Question
    context: Context
    steps: Iterator[tuple[float, ...] | None]


class Decisions:
    """One at a time, in the order in which they came; each step is one batch, so that serves go on beside them. `ends`
    are the ids that end an output; `cancelled` is asked before each batch."""

    def __init__(self, model: Model, *, ends: frozenset[int], cancelled: Callable[[int], bool]) -> None:
        self._model, self._cancelled = model, cancelled
        self._ends = np.array(sorted(ends), dtype=np.intp)
        self._waiting: deque[Question] = deque()
        self._work: _Work | None = None

    @property
    def busy(self) -> bool:
        return self._work is not None or bool(self._waiting)

    def add(self, question: Question) -> None:
        self._waiting.append(question)

    def step(self) -> Answers:
        out = Answers()
        gone = [question for question in self._waiting if self._cancelled(question.serve)]
        for question in gone:
            self._waiting.remove(question)
            out.cancelled.append(question.serve)
        try:
            if self._work is None and self._waiting:
                self._begin(self._waiting.popleft(), out)
            if self._work is not None:
                self._go_on(self._work, out)
        finally:
            if self._work is not None and (out.decided or out.failed or self._work.question.serve in out.cancelled):
                self._work.context.close()
                self._work = None
        return out

    def _begin(self, question: Question, out: Answers) -> None:
        tokens = len(question.prompt) + sum(map(len, question.options))
        try:
            context = self._model.branching(len(question.options), tokens)
        except EngineFailed as e:
            out.failed.append((question.serve, str(e)))
            return
        self._work = _Work(question, context, self._score(question, context))

    def _go_on(self, work: _Work, out: Answers) -> None:
        serve = work.question.serve
        if self._cancelled(serve):
            out.cancelled.append(serve)
            return
        try:
            found = next(work.steps)
        except EngineFailed as e:
            out.failed.append((serve, str(e)))
            return
        if found is not None:
            out.decided.append((serve, found))

    def _score(self, question: Question, context: Context) -> Iterator[tuple[float, ...] | None]:
        """None after each batch but the last, then the options' log-probabilities."""
        prompt, width = question.prompt, self._model.settings.n_ubatch
        rows: list[Row] = []
        for start in range(0, len(prompt), width):
            chunk = range(start, min(start + width, len(prompt)))
            rows = context.decode([Feed(prompt[i], i, 0, i == len(prompt) - 1) for i in chunk])
            yield None
        ends: list[int | None] = [None] if question.ending and self._ends.size else []  # some models have none
        sums = [_logprob(rows[0], option[:1]) for option in question.options]
        for other in range(1, len(question.options)):
            context.branch(0, other)
        # each fed id asks for what follows it: the next id of the option, or its end
        asks: list[tuple[Feed, int | None]] = []
        for branch, option in enumerate(question.options):
            follow = enumerate([*option[1:], *ends])
            asks += ((Feed(option[i], len(prompt) + i, branch, True), wanted) for i, wanted in follow)
        for start in range(0, len(asks), width):
            part = asks[start : start + width]
            for (feed, wanted), row in zip(part, context.decode([feed for feed, _ in part]), strict=True):
                sums[feed.slot] += _logprob(row, self._ends if wanted is None else (wanted,))
            if start + width < len(asks):
                yield None
        yield tuple(sums)


def _logprob(row: Row, ids: tuple[int, ...] | np.ndarray) -> float:
    """The natural logarithm of how likely one of `ids` comes next. Raises EngineFailed for logits that are no
    numbers."""
    logits = row.astype(np.float64)
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise EngineFailed(f"model: a logit is {peak}")
    weights = np.exp(logits - peak)
    part = float(weights[np.asarray(ids, dtype=np.intp)].sum())
    return math.log(part / float(weights.sum())) if part > 0 else -math.inf
