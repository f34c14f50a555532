"""What a replay costs beside the serve that it replays, and beside what the engine needs to read the same tokens.

Every way of replaying takes its turn after the same serves, so that all figures of one number of tokens belong
together. The models are loaded before: an audit loads one once for all its receipts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from bench.audited import Audited, Took, audited
from bench.measure import Comparison, Goal, PeerMissing, Plan, Sides
from bench.models import larger, requantized
from bench.scratch import scratch
from bench.venvs import ROOT
from mesh.cli.engines import packaged_model
from mesh.errors import UsageError
from mesh.replay.replayer import By

_PREFILL = Path(__file__).parent.parent / "peers" / "llama_prefill.py"
_QUICK_TOKENS = 16
_FULL_SERVES = 10  # a plan with fewer is a quick one
_ROUNDS = 3
_WIDTH = 64  # of the engine's batches
HALF, NEAR = Goal("<=", 0.5), Goal("<=", 1.15)
THREADS = (1, 2)

Make = Callable[[Path], Path]  # writes a model file
Way = tuple[str, int]  # how, and threads
SERVE: Way = ("serve", 1)


def _of(took: Took, threads: int) -> float:
    """More threads take more processor time and less of the auditor's."""
    return took.cpu_ms if threads == 1 else took.wall_ms


@cache
def _turns(tokens: int, seeded: bool, make: Make | None, bare: bool) -> dict[Way, list[Took]]:
    """What each way took, one figure for each round and one more before them, in which everything is made ready. With
    `bare` the engine's own pass over the same tokens is among them."""
    took: dict[Way, list[Took]] = {}
    with ExitStack() as stack:
        path = None if make is None else make(stack.enter_context(scratch("model")) / "model.gguf")
        one = stack.enter_context(audited(threads=THREADS, path=path))
        passes: dict[int, Callable[[], Took]] = {}
        for number in range(_ROUNDS + 1):
            took.setdefault(SERVE, []).append(one.serve(tokens, seeded=seeded))
            if bare and not number:
                passes = {threads: stack.enter_context(_bare(one, threads)) for threads in THREADS}
            for threads, pass_ in passes.items():
                took.setdefault(("bare", threads), []).append(pass_())
            for threads in THREADS:
                took.setdefault(("auto", threads), []).append(one.replay(threads=threads))
            if make is None and not seeded:
                took.setdefault(("decode", 1), []).append(one.replay(by="decode"))
    return took


@contextmanager
def _sides(
    plan: Plan, *, tokens: int, way: Way, beside: Way, seeded: bool = False, make: Make | None = None
) -> Iterator[Sides]:
    full = plan.serves >= _FULL_SERVES
    took = _turns(tokens if full else _QUICK_TOKENS, seeded, make, bare=tokens == _COMPARED and not seeded and not make)
    ours, peer = ((_of(one, way[1]) for one in took[each]) for each in (way, beside))
    yield Sides(lambda: next(ours), lambda: next(peer))


@contextmanager
def _bare(one: Audited, threads: int) -> Iterator[Callable[[], Took]]:
    ids = [*one.ids, *one.last.tokens[:-1]]
    work = {"path": str(packaged_model()), "ids": ids, "wanted": len(one.ids) - 1, "width": _WIDTH, "threads": threads}
    command = [sys.executable, str(_PREFILL)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    ) as peer:  # fmt: skip

        def ask(line: str) -> str:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(line + "\n")
            peer.stdin.flush()
            answer = peer.stdout.readline().strip()
            if not answer:
                raise PeerMissing(f"the bare pass ended with exit {peer.wait()}")
            return answer

        def pass_() -> Took:
            cpu, wall = ask("again").split()
            return Took(int(cpu) / 1e6, int(wall) / 1e6)

        ask(json.dumps(work))
        yield pass_


_COMPARED = 256  # tokens, of which there is a goal
_ONE_ROW = (
    "is the pass itself, which the row beside the engine's own prefill shows; Q4_1 has kernels for one row at a time, "
    "so that a pass saves the waiting for memory and the head, and no multiplication"
)


def _row(
    tokens: int, threads: int, by: By, *, goal: Goal | None = None, seeded: bool = False, make: Make | None = None,
    model: str = "SmolLM2 Q4_1", limit: str | None = None,
) -> Comparison:  # fmt: skip
    how = "prefill" if by == "auto" else "decoding"
    kind = (", seeded" if seeded else "") + ("" if make is None else f", {model}")
    return Comparison(
        name=f"replay by {how} vs serve, {tokens} tokens{kind}, {_threads(threads)}",
        unit="ms CPU" if threads == 1 else "ms wall",
        ours=f"replay of a sealed serve of {model}, loaded before: {how}, {_threads(threads)}",
        peer="that serve, decoded with one thread and sealed",
        goal=goal,
        sides=partial(_sides, tokens=tokens, way=(by, threads), beside=SERVE, seeded=seeded, make=make),
        rounds=_ROUNDS,
        limit=limit,
    )


def _smaller(path: Path) -> Path:
    try:
        return requantized(packaged_model(), path)
    except UsageError as e:
        raise PeerMissing("the packaged model is not installed") from e


def _threads(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"


def _goal(tokens: int) -> Goal | None:
    return HALF if tokens == _COMPARED else None


LENGTHS = (64, 256, 512)
SERVES: tuple[Comparison, ...] = (
    *(_row(tokens, 1, "auto", goal=_goal(tokens), limit=_ONE_ROW) for tokens in LENGTHS),
    *(_row(tokens, 2, "auto", goal=_goal(tokens)) for tokens in LENGTHS),
    *(_row(tokens, 1, "decode") for tokens in LENGTHS),
    *(_row(_COMPARED, threads, "auto", seeded=True) for threads in THREADS),
    *(_row(_COMPARED, threads, "auto", goal=HALF, make=_smaller, model="SmolLM2 Q4_0") for threads in THREADS),
    *(_row(64, threads, "auto", goal=HALF, make=larger, model="1 billion weights, Q8_0") for threads in THREADS),
)
PREFILL: tuple[Comparison, ...] = tuple(
    Comparison(
        name=f"replay vs the engine's own prefill, {_COMPARED} tokens, {_threads(threads)}",
        unit="ms CPU" if threads == 1 else "ms wall",
        ours="replay of a sealed serve of SmolLM2 Q4_1 by prefill, to the verdict",
        peer="llama.cpp taking in the same tokens under the same settings, logits of the output's places",
        goal=NEAR,
        sides=partial(_sides, tokens=_COMPARED, way=("auto", threads), beside=("bare", threads)),
        rounds=_ROUNDS,
    )
    for threads in THREADS
)
