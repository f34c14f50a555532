"""`python -m bench.tries`: where the time of a replay goes, and what was tried against it; AUDIT.md has the results.

All in this process, on the engine's own classes. Of each try the processor time (with two threads: the time on the
clock) beside decoding the same tokens one by one, in turns, medians of the ratios of a round; and whether its logits
are those of the steps, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "passive"  # before the library is there, whose threads would spin

import numpy as np
import xllamacpp

from bench.models import larger, requantized
from bench.scratch import scratch
from mesh.cli.engines import packaged_model
from mesh.engine import gguf_abi
from mesh.engine.gguf_context import Context, Feed
from mesh.engine.gguf_model import Model, ModelSettings, SamplingPlan
from mesh.engine.gguf_selfcheck import measure

PROMPT, WIDTH = 31, 64
PACKED, SHORT = 8, 8  # receipts in one batch, tokens of each
ROUNDS = 3
GREEDY = SamplingPlan(0, 1_000_000, 0, 0, 0, 0, 1_000_000, (), 0)
SEEDED = SamplingPlan(800_000, 950_000, 0, 0, 0, 0, 1_000_000, (), 7)


class Tried:
    """One model file under one way of keeping keys and values."""

    def __init__(self, path: Path, tokens: int, *, kv: str = "q8_0", extra: bool = True) -> None:
        library = gguf_abi.open_library(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so"))
        self.model = Model(library, ModelSettings(
            path=path, context_tokens=1024, slots=1, kv_type=kv, flash_attention=True, n_batch=512, n_ubatch=WIDTH,
            threads=1, batch_threads=1, use_extra_bufts=extra,
        ))  # fmt: skip
        self.ids = [(i * 7919 + 13) % self.model.vocab_tokens for i in range(PROMPT + tokens)]
        self.ways: dict[str, tuple[Callable[[], object], int]] = {}

    def steps(self) -> list[bytes]:
        return list(self._stepped(self.ids))

    def _stepped(self, ids: Sequence[int]) -> Iterator[bytes]:
        self.model.forget(0)
        self.model.decode([Feed(ids[i], i, 0, False) for i in range(PROMPT)])
        for i in range(PROMPT, len(ids)):
            yield self.model.decode([Feed(ids[i], i, 0, True)])[0].tobytes()

    def passed(self, context: Context, width: int, *, logits: bool = True) -> list[bytes]:
        context.forget(0)
        rows: list[bytes] = []
        for start in range(0, len(self.ids), width):
            places = range(start, min(start + width, len(self.ids)))
            feeds = [Feed(self.ids[i], i, 0, logits and i >= PROMPT) for i in places]
            rows += (row.tobytes() for row in context.decode(feeds))
        return rows

    def pass_of(self, width: int, threads: int = 1, *, logits: bool = True) -> Callable[[], list[bytes]]:
        context = self.model.checking(width, threads)
        return lambda: self.passed(context, width, logits=logits)

    def went_on(self) -> Callable[[], list[bytes]]:
        """A pass over an output whose prompt was computed for the one before: its whole batches are still there."""
        context, keep = self.model.checking(WIDTH, 1), (len(self.ids) - WIDTH) // WIDTH * WIDTH
        self.passed(context, WIDTH)

        def run() -> list[bytes]:
            context.forget(0, keep)
            places = range(keep, len(self.ids))
            rows: list[bytes] = []
            for start in range(keep, len(self.ids), WIDTH):
                feeds = [Feed(self.ids[i], i, 0, True) for i in places if start <= i < start + WIDTH]
                rows += (row.tobytes() for row in context.decode(feeds))
            return rows

        return run

    def ending(self) -> Callable[[], list[bytes]]:
        """The same with the prompt computed."""
        pass_, keep = self.pass_of(WIDTH), (len(self.ids) - WIDTH) // WIDTH * WIDTH
        return lambda: pass_()[keep - PROMPT :]

    def one_by_one(self) -> Callable[[], list[bytes]]:
        """`PACKED` short receipts, a pass for each."""
        context = self.model.checking(WIDTH, 1)

        def run() -> list[bytes]:
            rows: list[bytes] = []
            for number in range(PACKED):
                context.forget(0)
                rows += (row.tobytes() for row in context.decode(self._short(number, 0)))
            return rows

        return run

    def together(self) -> Callable[[], list[bytes]]:
        """The same in one batch."""
        context = self.model.branching(PACKED, PACKED * 2 * SHORT + WIDTH)

        def run() -> list[bytes]:
            rows: list[bytes] = []
            for first in range(0, PACKED, WIDTH // SHORT):
                context.forget_all()
                feeds = [feed for slot in range(WIDTH // SHORT) for feed in self._short(first + slot, slot)]
                rows += (row.tobytes() for row in context.decode(feeds))
            return rows

        return run

    def _short(self, number: int, slot: int) -> list[Feed]:
        return [Feed(self.ids[(number * SHORT + i) % len(self.ids)], i, slot, True) for i in range(SHORT)]


def _took(call: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    call()
    return (time.process_time_ns() - cpu) / 1e6, (time.perf_counter_ns() - wall) / 1e6


def compare(title: str, base: Callable[[], list[bytes]], tries: dict[str, Callable[[], list[bytes]]]) -> None:
    """Print of each try its time beside that of `base`."""
    known = base()
    same = {name: call() == known for name, call in tries.items()}
    took: dict[str, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for name, call in {"": base, **tries}.items():
            took.setdefault(name, []).append(_took(call))
    for name in tries:
        cpu, wall = (
            statistics.median(a[clock] / b[clock] for a, b in zip(took[name], took[""], strict=True))
            for clock in (0, 1)
        )
        print(f"{title} | {name} | CPU {cpu:.2f}, clock {wall:.2f} | {'same bits' if same[name] else 'OTHER bits'}")
    print(f"{title} | base | CPU {statistics.median(one[0] for one in took['']):.0f} ms |", flush=True)


def samplers(one: Tried) -> None:
    (row,) = one.model.decode([Feed(one.ids[0], 0, 0, True)])
    for name, plan in (("greedy", GREEDY), ("seeded, top_p 0.95", SEEDED)):
        sampler = one.model.sampler(plan, ())
        cpu, _ = _took(lambda sampler=sampler: [sampler.pick(np.asarray(row), 0) for _ in range(50)])  # type: ignore[misc]
        print(f"choosing | {name} | {cpu / 50 * 1000:.0f} us an id |")
        sampler.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.tries", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--large", action="store_true", help="the model of a billion weights too")
    args = parser.parse_args()
    tokens: int = args.tokens
    packaged = packaged_model()
    one = Tried(packaged, tokens)
    tries = {f"batches of {width}": one.pass_of(width) for width in (32, 64, 128, 512)}
    tries |= {"two threads": one.pass_of(WIDTH, 2), "no logits": one.pass_of(WIDTH, logits=False)}
    compare("Q4_1", one.steps, tries)
    compare(f"{PACKED} receipts of {SHORT} tokens", one.one_by_one(), {"in one batch": one.together()})
    compare("an output after a long prompt", one.ending(), {"its prompt still there": one.went_on()})
    samplers(one)
    half = Tried(packaged, tokens, kv="f16")
    widths = measure(half.model).widths
    print(f"f16 keys and values | widths that the self-check finds: {', '.join(map(str, widths)) or 'none'} |")
    compare("f16 keys and values", half.steps, {f"batches of {width}": half.pass_of(width) for width in (*widths, 64)})
    with scratch("tries") as folder:
        path = requantized(packaged, folder / "q4_0.gguf")
        for extra in (True, False):
            smaller = Tried(path, tokens, extra=extra)
            compare(
                f"Q4_0 {'with' if extra else 'without'} extra buffers", smaller.steps,
                {"batches of 64": smaller.pass_of(64), "two threads": smaller.pass_of(64, 2)},
            )  # fmt: skip
        if args.large:
            big = Tried(larger(folder / "large.gguf"), 48)
            compare("1 billion weights, Q8_0", big.steps, {
                "batches of 64": big.pass_of(64), "two threads": big.pass_of(64, 2),
            })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
