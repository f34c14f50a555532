"""Known outputs checked in the child: prompt and output in one pass, each choice made again from its own logits.

In a context of its own, which is made for the first check and kept. Its batches are as wide as the self-check found to
give the bits of decoding; with more threads, or wider ones, it is measured first, and what gives other bits is not
used. What a prompt begins with is not computed again where the one before began with it: receipts of one application
share long prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from mesh.engine.gguf_context import Context, Feed, Row
from mesh.engine.gguf_model import Model, Sampler
from mesh.engine.gguf_order import Order, Vocabulary
from mesh.engine.gguf_selfcheck import Measured, batches, gives_the_same
from mesh.engine.protocol import CheckResult, Difference
from mesh.engine.stops import Ending
from mesh.errors import EngineFailed


@dataclass(frozen=True, slots=True)
class Known:
    """An output to be held against what `order` gives. `cut`: how it ends is not judged."""

    order: Order
    output: tuple[int, ...]
    cut: bool


@dataclass(slots=True)
class Checked:
    """What came of one step: the check that was finished, the one that was called off, and the one that could not be
    done, with why."""

    found: list[tuple[int, CheckResult]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Where checks run: prompts in batches of `prompt` tokens, outputs in batches of `widths`."""

    context: Context
    prompt: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Wish:
    prompt: int
    widths: tuple[int, ...]
    threads: int


class Checks:
    """One at a time, in the order in which they came; each step is one batch, so that serves go on beside them.
    `cancelled` is asked before each. `threads` and `width` tokens are used for the passes where that changes no bit of
    what `measured` saw."""

    def __init__(
        self, model: Model, measured: Measured, *, vocabulary: Vocabulary, threads: int, width: int,
        cancelled: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self._model, self._measured, self._vocabulary = model, measured, vocabulary
        self._threads, self._width, self._cancelled = threads, width, cancelled
        self._waiting: deque[Known] = deque()
        self._work: tuple[int, Iterator[CheckResult | None]] | None = None
        self._pass: _Pass | None = None
        self._held: tuple[int, ...] = ()  # the prompt that was computed last, where its cells are still there

    @property
    def busy(self) -> bool:
        return self._work is not None or bool(self._waiting)

    def add(self, known: Known) -> None:
        self._waiting.append(known)

    def step(self) -> Checked:
        out = Checked()
        gone = [known for known in self._waiting if self._cancelled(known.order.serve)]
        for known in gone:
            self._waiting.remove(known)
            out.cancelled.append(known.order.serve)
        if self._work is None and self._waiting:
            known = self._waiting.popleft()
            self._work = known.order.serve, self._check(known)
        if self._work is not None:
            self._go_on(*self._work, out)
        if out.found or out.failed or (self._work is not None and self._work[0] in out.cancelled):
            self._work = None
        return out

    def _go_on(self, serve: int, steps: Iterator[CheckResult | None], out: Checked) -> None:
        if self._cancelled(serve):
            out.cancelled.append(serve)
            return
        try:
            found = next(steps)
        except EngineFailed as e:
            out.failed.append((serve, str(e)))
            return
        if found is not None:
            out.found.append((serve, found))

    def _check(self, known: Known) -> Iterator[CheckResult | None]:
        """None after each batch but the last, then what was found."""
        order = known.order
        if self._pass is None:
            self._pass = self._make_pass()
            yield None
        how = self._pass
        context = how.context
        sampler = self._model.sampler(order.plan, order.prompt, context)
        try:
            kept = self._keep(how, order.prompt)
            comparing = _Comparing(known, sampler, self._vocabulary.ending_of(order))
            rest = _feeds(known)[kept:]
            for feeds in batches(rest, len(order.prompt) - kept, prompt=how.prompt, widths=how.widths):
                rows = context.decode(feeds)
                if rows:  # the first of them is that of the prompt's last id
                    self._held = order.prompt
                first = len(feeds) - len(rows)
                if not all(comparing.take(row, first + i) for i, row in enumerate(rows)):
                    break
                yield None
            else:
                if comparing.goes_on:
                    place = len(order.prompt) + len(known.output) - 1
                    (row,) = context.decode([Feed(known.output[-1], place, 0, True)])
                    comparing.take(row, 0)
            yield comparing.result()
        finally:
            sampler.close()

    def _keep(self, how: _Pass, prompt: tuple[int, ...]) -> int:
        """Drop what the context holds, but for the ids that `prompt` begins with too; returns their number. Whole
        batches of the prompt before are kept: then each id is computed in the very batch that it would be in if none
        were, and the bits are the same. The last id of a prompt is computed in any case, for its logits."""
        held, self._held = self._held, ()
        common = next((i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), len(held))
        kept = min(common, len(prompt) - 1) // how.prompt * how.prompt
        if kept and how.context.forget(0, kept):
            return kept
        how.context.forget(0)
        return 0

    def _make_pass(self) -> _Pass:
        settings, measured = self._model.settings, self._measured
        usual = settings.n_ubatch
        narrow = measured.widths != (usual,)
        # where no width gives the bits of steps a check is a score, and need not be slow
        plain = _Wish(usual, measured.widths or (usual,), settings.batch_threads)
        wish = replace(plain, threads=self._threads) if narrow else _Wish(self._width, (self._width,), self._threads)
        if wish != plain and measured.widths:
            made = self._made(wish)
            if gives_the_same(self._model, made.context, measured, prompt=wish.prompt, widths=wish.widths):
                return made
            made.context.close()
        return self._made(plain)

    def _made(self, wish: _Wish) -> _Pass:
        context = self._model.checking(max(wish.prompt, *wish.widths), wish.threads)
        return _Pass(context, wish.prompt, wish.widths)


def _feeds(known: Known) -> list[Feed]:
    """All but the last id, in order: what each one but the prompt's own is to be chosen from."""
    prompt, ids = known.order.prompt, (*known.order.prompt, *known.output)
    asked = len(prompt) - 1  # the first place whose logits choose an id of the output
    return [Feed(token, i, 0, i >= asked) for i, token in enumerate(ids[: max(len(ids) - 1, len(prompt))])]


class _Comparing:
    """Takes the logits of one position after the other."""

    def __init__(self, known: Known, sampler: Sampler, ending: Ending) -> None:
        self._known, self._sampler, self._ending = known, sampler, ending
        self._differences: list[Difference] = []
        self._compared = 0
        self._finish: Literal["stop", "length"] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the engine would go on where the output ends."""
        return bool(self._known.output) and not (self._known.cut or self._differences or self._finish)

    def take(self, row: Row, index: int) -> bool:
        """The logits at batch index `index`, which are those of the next position. False where nothing after it can be
        compared."""
        output, at = self._known.output, self._compared
        expected = self._sampler.pick(row, index)
        served = output[at] if at < len(output) else None
        if served != expected:
            self._differences.append(Difference(at, served, expected, self._sampler.margin(row)))
        if served is None:
            return False
        self._compared += 1
        self._finish = self._ending.push(served)
        if self._finish is not None and self._compared < len(output):
            self._differences.append(Difference(at + 1, output[at + 1], None))
            return False
        return not self._differences or self._sampler.plan.follows_from_logits

    def result(self) -> CheckResult:
        found = tuple(self._differences)
        if found:
            return CheckResult("differs", self._compared, found)
        if self._known.cut:
            return CheckResult("agreed", self._compared)
        return CheckResult("agreed", self._compared, (), self._finish, self._compared)
