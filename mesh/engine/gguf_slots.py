"""The decode loop: serves waiting, serves in a slot, and one batch for all of them at each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mesh.engine.gguf_context import Feed
from mesh.engine.gguf_model import Model, Sampler, scores_of
from mesh.engine.gguf_order import Order, Vocabulary
from mesh.engine.protocol import Scores
from mesh.engine.stops import Ending
from mesh.errors import EngineFailed


@dataclass(slots=True)
class _Sequence:
    """A serve in a slot. `taken` is how much of the prompt is computed; `last` the newest id, not computed yet."""

    order: Order
    slot: int
    sampler: Sampler
    ending: Ending
    taken: int = 0
    last: int = 0

    @property
    def in_prompt(self) -> int:
        return len(self.order.prompt) - self.taken


@dataclass(slots=True)
class Step:
    """What came of one step: (serve, id, margin, scores) of each sequence that grew, serves that ended, with how,
    and those that could not begin, with why."""

    tokens: list[tuple[int, int, float | None, Scores | None]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)


class Slots:
    """At most `count` serves at once, the others wait their turn in order. `cancelled` is asked before each step and
    each token's worth of work."""

    def __init__(self, model: Model, *, count: int, vocabulary: Vocabulary, cancelled: Callable[[int], bool]) -> None:
        self._model, self._vocabulary, self._cancelled = model, vocabulary, cancelled
        self._free = list(range(count))
        self._waiting: deque[Order] = deque()
        self._running: list[_Sequence] = []

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, order: Order) -> None:
        self._waiting.append(order)

    def step(self) -> Step:
        """One batch over everything that runs: the next id of each sequence that decodes, and of prompts as much as
        n_ubatch allows, shared between them, so that a long one does not hold up the others for long."""
        out = Step()
        self._drop_cancelled(out)
        self._fill_slots(out)
        if not self._running:
            return out
        feeds: list[Feed] = []
        grow: list[tuple[_Sequence, int]] = []  # and the batch index of its logits
        readers = sum(1 for s in self._running if s.in_prompt)
        share = max(1, self._model.settings.n_ubatch // max(1, readers))
        for sequence in self._running:
            prompt, slot = sequence.order.prompt, sequence.slot
            if not sequence.in_prompt:
                feeds.append(Feed(sequence.last, len(prompt) + sequence.ending.made - 1, slot, True))
            else:
                end = min(sequence.taken + share, len(prompt))
                feeds += (Feed(prompt[i], i, slot, i == len(prompt) - 1) for i in range(sequence.taken, end))
                sequence.taken = end
            if not sequence.in_prompt:
                grow.append((sequence, len(feeds) - 1))
        rows = self._model.decode(feeds)
        for (sequence, index), row in zip(grow, rows, strict=True):
            token, margin = sequence.sampler.choose(row, index)
            sequence.last = token
            wanted = sequence.order.scores
            scores = None if wanted is None else scores_of(row, token, wanted)
            out.tokens.append((sequence.order.serve, token, margin, scores))
            finish = sequence.ending.push(token)
            if finish is not None:
                self._end(sequence, finish, out)
        return out

    def _drop_cancelled(self, out: Step) -> None:
        for sequence in [s for s in self._running if self._cancelled(s.order.serve)]:
            self._end(sequence, "cancelled", out)
        gone = [order for order in self._waiting if self._cancelled(order.serve)]
        for order in gone:
            self._waiting.remove(order)
            out.ended.append((order.serve, "cancelled"))

    def _fill_slots(self, out: Step) -> None:
        while self._waiting and self._free:
            order = self._waiting.popleft()
            try:
                sampler = self._model.sampler(order.plan, order.prompt)
            except EngineFailed as e:
                out.failed.append((order.serve, str(e)))
                continue
            slot = self._free.pop(0)
            self._model.forget(slot)
            self._running.append(_Sequence(order, slot, sampler, self._vocabulary.ending_of(order)))

    def _end(self, sequence: _Sequence, finish: str, out: Step) -> None:
        sequence.sampler.close()
        self._running.remove(sequence)
        self._free.append(sequence.slot)
        self._free.sort()
        out.ended.append((sequence.order.serve, finish))
