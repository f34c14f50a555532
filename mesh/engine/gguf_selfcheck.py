"""Whether this model, in this library, under these settings, gives the same bits whatever else is going on.

Measured at load and never assumed: flash attention, the type of keys and values, the batch width and the quantization
each decide it, and not one of them alone. Every logit of every compared row counts, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mesh.engine.gguf_context import Feed, Row
from mesh.engine.gguf_model import Model

# Past 256 cells the library lays keys and values out anew, and kernels that split the work over threads begin to.
LONG = 260
EDGE = 8  # rows compared at either end of the long sequence


@dataclass(frozen=True, slots=True)
class Measured:
    """`results` by name: None where every bit agreed, else the first position that differed. `token_cpu_ns` is the
    processor time of one token decoded alone, in nanoseconds."""

    results: dict[str, int | None]
    token_cpu_ns: int

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
    `together`: next to a second sequence, shorter or longer, decoding or taking in its prompt. `repeat` is measured
    only where one of them failed: the same serve twice, alone.
    """
    length = min(LONG, model.settings.context_tokens)
    ids = [(i * 7919 + 13) % model.vocab_tokens for i in range(length)]
    edge = min(EDGE, length // 4)
    head, tail = range(edge), range(length - edge, length)
    results: dict[str, int | None] = {}

    cold = _step_through(model, ids, head)
    model.forget(0)
    known = _take_in(model, ids, 0, {*head, *tail})
    cuts = model.forget(0, tail.start)
    began = time.process_time_ns()
    if cuts:
        results["step"] = _first_difference(known, {**cold, **_step_through(model, ids, tail)}.items())
    else:  # a recurrent state has no positions to cut at; nothing below could be compared
        model.forget(0)
        results["step"] = 0
        _take_in(model, ids[:edge], 0, set())
    token_cpu_ns = (time.process_time_ns() - began) // edge

    if model.settings.slots > 1 and cuts:
        results["together"] = _together(model, ids, known, head, tail)
        model.forget(1)
    model.forget(0)
    results["warm"] = _first_difference(cold, _step_through(model, ids, head).items())

    if any(position is not None for position in results.values()):
        first = _serve_alone(model, ids, tail)
        results["repeat"] = _first_difference(first, _serve_alone(model, ids, tail).items())
    model.forget_all()
    return Measured(results, token_cpu_ns)


def _together(model: Model, ids: Sequence[int], known: dict[int, Row], head: range, tail: range) -> int | None:
    model.forget(0, tail.start)
    for i, j in zip(tail, head, strict=True):
        rows = model.decode([Feed(ids[i], i, 0, True), Feed(ids[j], j, 1, True)])
        different = _first_difference(known, zip((i, j), rows, strict=True))
        if different is not None:
            return different
    # a prompt that comes in beside a sequence that decodes
    last = tail.stop - 1
    model.forget(0, last)
    model.forget(1)
    wide = min(model.settings.n_ubatch, last, 64)
    feeds = [Feed(ids[last], last, 0, True), *(Feed(ids[j], j, 1, j in head) for j in range(wide))]
    return _first_difference(known, zip([last, *range(min(wide, len(head)))], model.decode(feeds), strict=True))


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
