"""Whether this model, in this library, under these settings, gives the same bits whatever else is going on.

Measured at load and never assumed: flash attention, the type of keys and values, the batch width and the quantization
each decide it, and not one of them alone. Every logit of every compared row counts, bit for bit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mesh.engine.gguf_context import Context, Feed, Row
from mesh.engine.gguf_model import Model

# Past 256 cells the library lays keys and values out anew, and kernels that split the work over threads begin to.
LONG = 260
EDGE = 8  # rows compared at either end of the long sequence
# Tried where batches as wide as prompts have give other bits than steps: kernels for few rows may still be the same.
NARROW = (32, 7, 3)


@dataclass(frozen=True, slots=True)
class Measured:
    """`results` by name: None where every bit agreed, else the first position that differed. `token_cpu_ns` is the
    processor time of one token decoded alone, in nanoseconds. `widths` are of how many tokens an output's batches may
    be to give the bits of steps, widest first: that of prompts alone, or, where it gives others, narrow ones. `steps`
    are the digests of the rows that were stepped to, by position."""

    results: dict[str, int | None]
    token_cpu_ns: int
    widths: tuple[int, ...]
    steps: dict[int, bytes]

    @property
    def identical(self) -> bool:
        return all(self.results[name] is None for name in self.results if name != "repeat")

    @property
    def repeats(self) -> bool:
        """Whether a serve that runs alone, from an empty sequence, gives the same bits again."""
        return self.identical or ("repeat" in self.results and self.results["repeat"] is None)


def measure(model: Model) -> Measured:
    """Run the check on an empty context of `model`, which is left empty.

    `step`: one token at a time against a whole chunk. `warm`: a sequence whose cells held another one before.
    `together`: next to as many others as there are slots for, shorter or longer, decoding or taking in their prompts.
    `repeat` is measured only where one of them failed: the same serve twice, alone.
    """
    ids, head, tail = _probe(model)
    edge = len(head)
    results: dict[str, int | None] = {}

    cold = _step_through(model, ids, head)
    model.forget(0)
    known = _take_in(model, ids, 0, {*head, *tail})
    cuts = model.forget(0, tail.start)
    began = time.process_time_ns()
    stepped = dict(cold)
    if cuts:
        stepped |= _step_through(model, ids, tail)
        results["step"] = _first_difference(known, stepped.items())
    else:  # a recurrent state has no positions to cut at; nothing below could be compared
        model.forget(0)
        results["step"] = 0
        _take_in(model, ids[:edge], 0, set())
    token_cpu_ns = (time.process_time_ns() - began) // edge

    if model.settings.slots > 1 and cuts:
        results["together"] = _together(model, ids, known, head, tail)
        for slot in range(1, model.settings.slots):
            model.forget(slot)
    model.forget(0)
    results["warm"] = _first_difference(cold, _step_through(model, ids, head).items())

    width = model.settings.n_ubatch
    widths: tuple[int, ...] = (width,)
    if any(position is not None for position in results.values()):
        end = range(len(ids) - min(max(NARROW), len(ids) // 2), len(ids))
        alone = _serve_alone(model, ids, end)
        results["repeat"] = _first_difference(alone, _serve_alone(model, ids, end).items())
        if results["step"] is not None:
            stepped = cold | {i: alone[i] for i in end}
            repeats = cuts and results["repeat"] is None
            narrow = [w for w in NARROW if w < width and w <= len(end)] if repeats else []
            widths = tuple(w for w in narrow if _gives_steps(model, ids, end, stepped, w))
            widths = tuple(w for w in widths if _gives_steps(model, ids, head, stepped, w))
    model.forget_all()
    return Measured(results, token_cpu_ns, widths, {i: _digest(row) for i, row in stepped.items()})


def gives_the_same(model: Model, context: Context, measured: Measured, *, prompt: int, widths: Sequence[int]) -> bool:
    """Whether `context`, of another width or other threads, gives the rows that were stepped to, with prompts taken in
    in batches of `prompt` tokens and outputs in batches of `widths`. It is left with sequence 0 in it."""
    ids, head, _ = _probe(model)
    end = range(min(i for i in measured.steps if i not in head), len(ids))
    for places in (end, head):
        context.forget(0)
        feeds = [Feed(ids[i], i, 0, i in places) for i in range(places.stop)]
        rows: list[bytes] = []
        for batch in batches(feeds, places.start, prompt=prompt, widths=widths):
            rows += map(_digest, context.decode(batch))
        if rows != [measured.steps[i] for i in places]:
            return False
    return True


def batches(
    feeds: Sequence[Feed], prompt_tokens: int, *, prompt: int, widths: Sequence[int]
) -> Iterator[Sequence[Feed]]:
    """One sequence in batches: the first `prompt_tokens` in batches of `prompt`, the others in batches of `widths`,
    widest first, and over the seam between them where both are the same. What is left by narrow ones is stepped
    through: then no width is used but those that were measured."""
    if tuple(widths) == (prompt,):
        yield from _chunks(feeds, prompt)
        return
    yield from _chunks(feeds[:prompt_tokens], prompt)
    rest = feeds[prompt_tokens:]
    for width in (*widths, 1):
        whole = len(rest) // width * width
        yield from _chunks(rest[:whole], width)
        rest = rest[whole:]


def _chunks(feeds: Sequence[Feed], width: int) -> Iterator[Sequence[Feed]]:
    return (feeds[start : start + width] for start in range(0, len(feeds), width))


def _probe(model: Model) -> tuple[list[int], range, range]:
    """The ids of the long sequence, and the positions at its two ends that are compared."""
    length = min(LONG, model.settings.context_tokens)
    edge = min(EDGE, length // 4)
    ids = [(i * 7919 + 13) % model.vocab_tokens for i in range(length)]
    return ids, range(edge), range(length - edge, length)


def _gives_steps(model: Model, ids: Sequence[int], places: range, stepped: dict[int, Row], width: int) -> bool:
    """Whether batches of `width` give the rows that were stepped to at `places`, what is before which must be there.
    What is after them is lost."""
    if not model.forget(0, places.start):
        return False
    rows: list[Row] = []
    for start in range(places.start, places.stop, width):
        feeds = [Feed(ids[i], i, 0, i in places) for i in range(start, start + width) if i < len(ids)]
        rows += (row.copy() for row in model.decode(feeds))
    return _first_difference(stepped, zip(places, rows, strict=True)) is None


def _together(model: Model, ids: Sequence[int], known: dict[int, Row], head: range, tail: range) -> int | None:
    others = range(1, model.settings.slots)
    model.forget(0, tail.start)
    for i, j in zip(tail, head, strict=True):
        rows = model.decode([Feed(ids[i], i, 0, True), *(Feed(ids[j], j, slot, True) for slot in others)])
        different = _first_difference(known, zip((i, *(j for _ in others)), rows, strict=True))
        if different is not None:
            return different
    # prompts that come in beside a sequence that decodes
    last = tail.stop - 1
    model.forget(0, last)
    for slot in others:
        model.forget(slot)
    wide = max(1, min(model.settings.n_ubatch // len(others), last, 64))
    feeds = [Feed(ids[last], last, 0, True)]
    feeds += (Feed(ids[j], j, slot, j in head) for slot in others for j in range(wide))
    places = [last, *(j for _ in others for j in range(min(wide, len(head))))]
    return _first_difference(known, zip(places, model.decode(feeds), strict=True))


def _serve_alone(model: Model, ids: Sequence[int], tail: range) -> dict[int, Row]:
    model.forget(0)
    return _take_in(model, ids[: tail.start], 0, {tail.start - 1}) | _step_through(model, ids, tail)


def _step_through(model: Model, ids: Sequence[int], places: range) -> dict[int, Row]:
    """Feed one token at a time at `places` of sequence 0; copies of the rows by position."""
    return {i: model.decode([Feed(ids[i], i, 0, True)])[0].copy() for i in places}


def _take_in(model: Model, ids: Sequence[int], slot: int, wanted: set[int]) -> dict[int, Row]:
    """Feed `ids` from position 0 in the chunks that serves use; copies of the wanted rows by position."""
    rows: dict[int, Row] = {}
    width = model.settings.n_ubatch
    for start in range(0, len(ids), width):
        chunk = range(start, min(start + width, len(ids)))
        found = model.decode([Feed(ids[i], i, slot, i in wanted) for i in chunk])
        rows |= zip((i for i in chunk if i in wanted), (row.copy() for row in found), strict=True)
    return rows


def _first_difference(known: dict[int, Row], rows: Iterable[tuple[int, Row]]) -> int | None:
    """The first position whose logits are not the known ones bit for bit. Every row is computed even so: what comes
    after relies on the sequence being complete."""
    different = [i for i, row in rows if not np.array_equal(row.view(np.uint32), known[i].view(np.uint32))]
    return min(different, default=None)


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
